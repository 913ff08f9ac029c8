"""torch.compile before the first batch; without it, or where it does not fit, batches go through the model as
it is.
"""

from __future__ import annotations

import asyncio
import ctypes
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from ingestor.device import DONE, DeviceBatch
from ingestor.encoding.budget import made_up
from ingestor.encoding.encoder import Encoder
from ingestor.errors import EncoderError, one_line
from ingestor.telemetry import logger

LIMIT_S = 180.0
"""A compiler that is still at work then is abandoned; ten seconds are usual."""
SAME_COSINE = 0.999
"""Lowest between a chunk's vectors of the compiled model and of the model as it is."""
ROUNDED_COSINE = 0.98
"""The same where either rounds to eight bits: what the quality gate sees is of the same size."""
FEW_TOKENS = 1024
"""Smaller batches are not worth what a compiled model makes of odd sizes."""
REFUSALS = 8


class Compilable(Encoder, Protocol):
    """An encoder that torch.compile takes."""

    def compiled(self, most_tokens: int) -> Encoder:
        """The same encoder, whose first forward compiles."""


async def compile_encoder(
    encoder: Compilable,
    torch_device: torch.device,
    *,
    tokens: int,
    max_tokens: int,
    stop: asyncio.Event,
    least_cosine: float = SAME_COSINE,
) -> Encoder:
    """Wait until the encoder is compiled; where that fails, or the run is stopped, it comes back as it was.

    Args:
        encoder: nothing else uses it meanwhile.
        torch_device: where the model is.
        tokens: in the batches to come.
        max_tokens: in the longest chunk.
        stop: gives the compiler up.
        least_cosine: between vectors of the compiled encoder and of this one.
    """
    since = time.perf_counter()
    logger().info("compile", then="the first batch", most_s=LIMIT_S)
    thread = _CompilerThread(lambda: _compile(encoder, torch_device, tokens, max_tokens, least_cosine))
    try:
        found = await thread.result(stop)
    finally:
        await thread.close()
    if isinstance(found, Exception):
        if not stop.is_set():
            _as_it_is(found)
        return encoder
    logger().info("compile", seconds=round(time.perf_counter() - since, 1))
    return CompiledEncoder(encoder, found)


class CompiledEncoder:
    """A compiled encoder, and the same as it was, for batches that what was compiled does not fit."""

    packed = True

    def __init__(self, encoder: Encoder, compiled: Encoder) -> None:
        self.dimension = encoder.dimension
        self._eager = encoder
        self._compiled: Encoder | None = compiled
        self._refusals = 0

    def forward(self, batch: DeviceBatch) -> Tensor:
        compiled = self._compiled
        if compiled is None or batch.rows < 2 or len(batch.tokens) < FEW_TOKENS:
            return self._eager.forward(batch)
        try:
            # Compiling once more, for a batch unlike the others, would stop the run for seconds.
            with torch.compiler.set_stance("fail_on_recompile"):
                return compiled.forward(batch)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            self._refused(error)
            return self._eager.forward(batch)

    def _refused(self, error: RuntimeError) -> None:
        self._refusals += 1
        if self._refusals == REFUSALS:
            self._compiled = None
            _as_it_is(error)


def _compile(
    encoder: Compilable, torch_device: torch.device, tokens: int, max_tokens: int, least_cosine: float
) -> Encoder:
    """Compile with made-up batches, and hold what comes out against the model as it is."""
    compiled = encoder.compiled(max_tokens)
    for size in (tokens, max(FEW_TOKENS, tokens // 3)):
        batch = _on_device(size, max_tokens, torch_device)
        with torch.inference_mode(), _stream_of_its_own(torch_device):
            found, expected = compiled.forward(batch), encoder.forward(batch)
            lowest = float(functional.cosine_similarity(found, expected).min())
        if not lowest >= least_cosine:
            raise EncoderError(f"the compiled model gives other vectors: cosine {lowest:.5f}")
    if torch_device.type == "cuda":
        torch.cuda.empty_cache()  # what the stream of its own held on to
    return compiled


def _on_device(tokens: int, max_tokens: int, torch_device: torch.device) -> DeviceBatch:
    batch = made_up(tokens, max_tokens, packed=True)
    there = torch.from_numpy(batch.tokens).to(torch_device)
    offsets = torch.from_numpy(batch.offsets).to(torch_device, torch.int32)
    return DeviceBatch(there, offsets, batch.offsets, batch.points, DONE)


class _CompilerThread:
    """One call in a thread of its own. Compilers cannot be told to stop: the thread is made to raise."""

    def __init__(self, work: Callable[[], Encoder]) -> None:
        self._lock = threading.Lock()
        self._at_work: int | None = None  # the thread's ident
        self._abandoned = False
        self._pool = ThreadPoolExecutor(1, "compile")
        self._found = self._pool.submit(self._run, work)

    async def result(self, stop: asyncio.Event) -> Encoder | Exception:
        """What the call returned or raised; an EncoderError where it was abandoned."""

        async def give_up() -> None:
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), LIMIT_S)
            self._abandon()

        async with asyncio.TaskGroup() as group:
            watch = group.create_task(give_up(), name="watch")
            found = await asyncio.wrap_future(self._found)
            watch.cancel()
        return found

    async def close(self) -> None:
        self._abandon()
        await asyncio.to_thread(self._pool.shutdown)

    def _abandon(self) -> None:
        with self._lock:
            self._abandoned = True
            if self._at_work is not None:
                _raise_in(self._at_work, _AbandonedError)
                self._at_work = None

    def _run(self, work: Callable[[], Encoder]) -> Encoder | Exception:
        try:
            try:
                with self._lock:
                    if self._abandoned:
                        raise _AbandonedError
                    self._at_work = threading.get_ident()
                return work()
            finally:
                with self._lock:
                    self._at_work = None
        except _AbandonedError:
            return EncoderError(f"given up after {LIMIT_S:.0f} s")
        except Exception as error:  # a compiler may raise anything; the run needs none of it
            return error


class _AbandonedError(BaseException):
    """Ends a compilation from outside; no compiler takes it for a failure of its own."""


def _stream_of_its_own(torch_device: torch.device) -> AbstractContextManager[Any]:
    if torch_device.type == "cpu":
        return nullcontext()
    torch.cuda.set_device(torch_device)
    return torch.cuda.stream(torch.cuda.Stream(torch_device))


def _raise_in(thread: int, error: type[BaseException]) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(error))


def _as_it_is(error: Exception) -> None:
    logger().warning("compile", error=one_line(error, 300), then="the model runs as it is")
