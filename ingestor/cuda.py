"""The GPU: one thread issues everything, and copies run beside the arithmetic, on streams of their own."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from ingestor.buffers import BufferPool, Slot
from ingestor.device import DeviceBatch, DeviceEmbeddings, Event, copy_rows, in_thread, usable
from ingestor.errors import ResourceError
from ingestor.records import Batch

P = ParamSpec("P")
T = TypeVar("T")

_INPUTS = 4
_PORTABLE = 1  # cudaHostRegisterPortable


class CudaDevice:
    """A GPU; the methods are those of `Device`."""

    def __init__(self, index: int) -> None:
        self.torch_device = torch.device("cuda", index)
        self._launch = ThreadPoolExecutor(1, "launch", initializer=torch.cuda.set_device, initargs=(index,))
        self._wait = ThreadPoolExecutor(1, "wait", initializer=torch.cuda.set_device, initargs=(index,))
        self._ingress, self._compute, self._egress = (_stream(index) for _ in range(3))
        self._inputs: deque[tuple[Tensor, torch.cuda.Event]] = deque()
        self._registered: list[int] = []

    async def launch(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await in_thread(self._launch, work, *args, **kwargs)

    async def wait(self, event: Event) -> None:
        await in_thread(self._wait, event.synchronize)

    async def register(self, buffers: BufferPool) -> None:
        await self.launch(self._pin, buffers.address, buffers.layout.nbytes)

    async def close(self) -> None:
        await self.launch(self._finish)
        await asyncio.to_thread(self._wait.shutdown)
        await asyncio.to_thread(self._launch.shutdown)

    def upload(self, batch: Batch) -> DeviceBatch:
        tokens, numbers = len(batch.tokens), len(batch.tokens) + len(batch.offsets)
        pinned = self._input(numbers)
        host = pinned.numpy()
        host[:tokens] = batch.tokens
        host[tokens:numbers] = batch.offsets
        with torch.cuda.stream(self._ingress):
            there = pinned[:numbers].to(self.torch_device, non_blocking=True)
        # Its memory is the ingress stream's, which must not give it away while the model still reads it.
        there.record_stream(self._compute)
        ready = _mark(self._ingress)
        self._inputs.append((pinned, ready))
        return DeviceBatch(there[:tokens], there[tokens:], batch.offsets, batch.points, ready)

    def compute(self, batch: DeviceBatch, forward: Callable[[DeviceBatch], Tensor]) -> DeviceEmbeddings:
        self._compute.wait_event(batch.ready)  # type: ignore[arg-type]
        with torch.inference_mode(), torch.cuda.stream(self._compute):
            vectors = forward(batch)
            flags = usable(vectors)
        return DeviceEmbeddings(vectors, flags, batch.points, _mark(self._compute))

    def download(self, embeddings: DeviceEmbeddings, slot: Slot) -> Event:
        self._egress.wait_event(embeddings.ready)  # type: ignore[arg-type]
        with torch.cuda.stream(self._egress):
            copy_rows(embeddings, slot)
        return _mark(self._egress)

    def _input(self, numbers: int) -> Tensor:
        """A pinned int32 buffer with room for `numbers`, whose last copy has ended."""
        if len(self._inputs) == _INPUTS:
            pinned, copied = self._inputs.popleft()
            copied.synchronize()  # four batches ago: over long since
            if len(pinned) >= numbers:
                return pinned
        return torch.empty(1 << numbers.bit_length(), dtype=torch.int32, pin_memory=True)

    def _pin(self, address: int, nbytes: int) -> None:
        result = int(_runtime().cudaHostRegister(address, nbytes, _PORTABLE))
        if result:
            raise ResourceError(
                f"CUDA cannot pin {nbytes / 2**20:.0f} MiB of shared memory (error {result}); lower"
                " pipeline.buffers, or raise the limit on locked memory (ulimit -l, docker: ulimits.memlock)"
            )
        self._registered.append(address)

    def _finish(self) -> None:
        for stream in (self._ingress, self._compute, self._egress):
            stream.synchronize()
        while self._registered:
            _runtime().cudaHostUnregister(self._registered.pop())


def room(device: torch.device) -> tuple[str, int, int]:
    """The GPU's name, and its free and whole memory in bytes."""
    free, total = torch.cuda.mem_get_info(device)
    return torch.cuda.get_device_name(device), free, total


def _stream(index: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(index)


def _mark(stream: torch.cuda.Stream) -> torch.cuda.Event:
    """An event at the stream's end; whoever waits for it sleeps instead of spinning."""
    event = torch.cuda.Event(blocking=True)
    event.record(stream)
    return event


def _runtime() -> Any:
    return torch.cuda.cudart()
