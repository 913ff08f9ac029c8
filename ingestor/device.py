"""Where the encoder runs: the thread that issues its work, and how batches get in and vectors out.

Devices have the same methods; only a CUDA device (`cuda.py`) has anything to wait for.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import ParamSpec, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from ingestor.buffers import BufferPool, Slot
from ingestor.errors import ConfigError
from ingestor.records import Batch, Int64s, Points

P = ParamSpec("P")
T = TypeVar("T")


class Event(Protocol):
    """A moment in the device's work."""

    def synchronize(self) -> None:
        """Sleep until it has come."""


@dataclass(frozen=True, slots=True)
class DeviceBatch:
    """A batch on the device, or on its way there.

    Attributes:
        tokens: int32[T], back to back.
        offsets: int32[n + 1], on the device.
        bounds: int64[n + 1], the same numbers on the host.
        points: n points.
        ready: when the tensors may be read.
    """

    tokens: Tensor
    offsets: Tensor
    bounds: Int64s
    points: Points
    ready: Event

    @property
    def rows(self) -> int:
        return len(self.bounds) - 1

    @property
    def longest(self) -> int:
        """Tokens in the longest chunk."""
        return int(np.diff(self.bounds).max())

    def slice(self, start: int, stop: int) -> DeviceBatch:
        """Some of the chunks, without a copy of their tokens."""
        bounds = self.bounds[start : stop + 1]
        tokens = self.tokens[int(bounds[0]) : int(bounds[-1])]
        offsets = self.offsets[start : stop + 1] - int(bounds[0])
        return DeviceBatch(tokens, offsets, bounds - bounds[0], self.points.slice(start, stop), self.ready)


@dataclass(frozen=True, slots=True)
class DeviceEmbeddings:
    """Vectors on the device, or being computed there.

    Attributes:
        vectors: float32[n, dimension].
        flags: uint8[n], 1 where a vector is finite and not all zero.
        points: n points.
        ready: when the tensors may be read.
    """

    vectors: Tensor
    flags: Tensor
    points: Points
    ready: Event


class Device(Protocol):
    """Runs the encoder. What is async is for the event loop; the rest is for the thread behind `launch`."""

    torch_device: torch.device

    async def launch(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `work` in the one thread that issues everything, in the order of the calls."""

    async def wait(self, event: Event) -> None:
        """Sleep until `event` has come; events of downloads come in the order of the downloads."""

    async def register(self, buffers: BufferPool) -> None:
        """Let the device write to the pool's slots directly, from now until `close`."""

    async def close(self) -> None:
        """Finish what was launched and let go of the registered pool and of the threads."""

    def upload(self, batch: Batch) -> DeviceBatch:
        """Start to bring a batch to the device."""

    def compute(self, batch: DeviceBatch, forward: Callable[[DeviceBatch], Tensor]) -> DeviceEmbeddings:
        """Start `forward`, which gives float32[n, dimension], and look for rows that cannot be used."""

    def download(self, embeddings: DeviceEmbeddings, slot: Slot) -> Event:
        """Start to copy vectors and flags into a slot's first rows."""


def open_device(choice: str, *, threads: int | None = None) -> Device:
    """Start a device's threads.

    Args:
        choice: `auto` (CUDA where there is one), `cpu`, `cuda` or `cuda:N`.
        threads: for the CPU's arithmetic; None for all cores that this process may use.

    Raises:
        ConfigError: there is no such device here.
    """
    cuda = torch.cuda.is_available()
    if choice == "cpu" or (choice == "auto" and not cuda):
        return CpuDevice(threads or len(os.sched_getaffinity(0)))
    if not cuda:
        raise ConfigError(
            f"encoder.device: {choice}: torch {torch.__version__} sees no CUDA device;"
            " check the driver and that torch is a CUDA build, or set cpu or auto"
        )
    try:
        found = torch.device("cuda" if choice == "auto" else choice)
    except RuntimeError as error:
        raise ConfigError(f"encoder.device: {choice!r} is none of auto, cpu, cuda and cuda:N") from error
    index = found.index or 0
    if found.type != "cuda" or index >= torch.cuda.device_count():
        raise ConfigError(
            f"encoder.device: {choice}: there are {torch.cuda.device_count()} CUDA devices here"
        )
    from ingestor.cuda import CudaDevice  # it builds on this module

    return CudaDevice(index)


class CpuDevice:
    """The processor: nothing to copy, and work is done when `launch` returns."""

    def __init__(self, threads: int) -> None:
        self.torch_device = torch.device("cpu")
        self._launch = ThreadPoolExecutor(1, "launch", initializer=torch.set_num_threads, initargs=(threads,))

    async def launch(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await in_thread(self._launch, work, *args, **kwargs)

    async def wait(self, event: Event) -> None:
        event.synchronize()

    async def register(self, buffers: BufferPool) -> None:
        pass

    async def close(self) -> None:
        await asyncio.to_thread(self._launch.shutdown)

    def upload(self, batch: Batch) -> DeviceBatch:
        offsets = torch.from_numpy(batch.offsets.astype(np.int32))
        return DeviceBatch(torch.tensor(batch.tokens), offsets, batch.offsets, batch.points, DONE)

    def compute(self, batch: DeviceBatch, forward: Callable[[DeviceBatch], Tensor]) -> DeviceEmbeddings:
        with torch.inference_mode():
            vectors = forward(batch)
            return DeviceEmbeddings(vectors, usable(vectors), batch.points, DONE)

    def download(self, embeddings: DeviceEmbeddings, slot: Slot) -> Event:
        copy_rows(embeddings, slot)
        return DONE


class _Done:
    def synchronize(self) -> None:
        pass


DONE: Event = _Done()
"""Of work that is done already, as all of a CPU's is."""


def usable(vectors: Tensor) -> Tensor:
    """uint8[n], 1 where a row of float32[n, dimension] is finite and not all zero."""
    largest = vectors.abs().amax(1)
    return (torch.isfinite(largest) & (largest > 0)).to(torch.uint8)


def copy_rows(embeddings: DeviceEmbeddings, slot: Slot) -> None:
    """Copy vectors and flags into the slot's first rows; on CUDA only start to."""
    rows = len(embeddings.points)
    torch.from_numpy(slot.vectors)[:rows].copy_(embeddings.vectors, non_blocking=True)
    torch.from_numpy(slot.flags)[:rows].copy_(embeddings.flags, non_blocking=True)


async def in_thread(
    executor: ThreadPoolExecutor, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs
) -> T:
    """Run `work` in the executor."""
    return await asyncio.get_running_loop().run_in_executor(executor, lambda: work(*args, **kwargs))
