"""torch.compile beside a run: batches go through the model as it is until its compiled form is ready."""

from __future__ import annotations

import asyncio
import ctypes
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from ingestor.budget import made_up
from ingestor.device import DeviceBatch
from ingestor.encoder import Encoder
from ingestor.errors import EncoderError
from ingestor.telemetry import logger

LOWEST_COSINE = 0.999
FEW_TOKENS = 1024
"""Smaller batches are not worth what a compiled model makes of odd sizes."""
REFUSALS = 8
GIVE_WAY_S = 1e-4
"""A compiler is long calculations in Python. Each thread of the run that wants the interpreter waits so long
for it, some hundred times a batch; with Python's usual 5 ms the run nearly stands still.
"""


class Compilable(Encoder, Protocol):
    def compiled(self, most_tokens: int) -> Encoder:
        """The same encoder, whose first forward compiles."""


class CompilingEncoder:
    """An encoder that becomes faster during the run; it never waits for that, and may do without.

    Args:
        encoder: what it starts with.
        torch_device: where the model is.
        tokens: in the batches to come.
        max_tokens: in the longest chunk.
    """

    packed = True

    def __init__(
        self, encoder: Compilable, torch_device: torch.device, *, tokens: int, max_tokens: int
    ) -> None:
        self.dimension = encoder.dimension
        self._eager = encoder
        self._device = torch_device
        self._tokens, self._max_tokens = tokens, max_tokens
        self._compiled: Encoder | None = None
        self._refusals = 0
        self._thread = ThreadPoolExecutor(1, "compile")
        self._lock = threading.Lock()
        self._at_work: int | None = None  # the thread's ident
        self._thread.submit(self._work)

    def forward(self, batch: DeviceBatch) -> Tensor:
        compiled = self._compiled
        if compiled is None or batch.rows < 2 or len(batch.tokens) < FEW_TOKENS:
            return self._eager.forward(batch)
        try:
            # Compiling once more, for a batch unlike the others, would stop the run for half a minute.
            with torch.compiler.set_stance("fail_on_recompile"):
                return compiled.forward(batch)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            self._refused(error)
            return self._eager.forward(batch)

    async def close(self) -> None:
        """Abandon what is not compiled yet."""
        with self._lock:
            if self._at_work is not None:
                _raise_in(self._at_work, _AbandonedError)
        await asyncio.to_thread(self._thread.shutdown)

    def _refused(self, error: RuntimeError) -> None:
        self._refusals += 1
        if self._refusals == REFUSALS:
            self._compiled = None
            logger().warning("compile", error=_in_a_line(error), then="the model runs as it is")

    def _work(self) -> None:
        since, usual = time.perf_counter(), sys.getswitchinterval()
        try:
            try:
                sys.setswitchinterval(GIVE_WAY_S)
                self._at_work = threading.get_ident()
                self._compiled = self._compile()
            finally:
                sys.setswitchinterval(usual)
                with self._lock:
                    self._at_work = None
        except _AbandonedError:
            return
        except Exception as error:  # a compiler may raise anything; the run needs none of it
            logger().warning("compile", error=_in_a_line(error), then="the model runs as it is")
        else:
            logger().info("compile", seconds=round(time.perf_counter() - since, 1))

    def _compile(self) -> Encoder:
        """Compile with a made-up batch, and hold what comes out against the model as it is."""
        compiled = self._eager.compiled(self._max_tokens)
        for tokens in (self._tokens, max(FEW_TOKENS, self._tokens // 3)):
            batch = self._made_up(tokens)
            with torch.inference_mode(), _stream_of_its_own(self._device):
                found, expected = compiled.forward(batch), self._eager.forward(batch)
                lowest = float(functional.cosine_similarity(found, expected).min())
            if not lowest >= LOWEST_COSINE:
                raise EncoderError(f"the compiled model gives other vectors: cosine {lowest:.5f}")
        return compiled

    def _made_up(self, tokens: int) -> DeviceBatch:
        batch = made_up(tokens, self._max_tokens, packed=True)
        there = torch.from_numpy(batch.tokens).to(self._device)
        offsets = torch.from_numpy(batch.offsets).to(self._device, torch.int32)
        return DeviceBatch(there, offsets, batch.offsets, batch.points, _READY)


class _AbandonedError(BaseException):
    """Ends a compilation from outside; no compiler takes it for a failure of its own."""


class _Ready:
    def synchronize(self) -> None:
        pass


_READY = _Ready()


def _stream_of_its_own(torch_device: torch.device) -> AbstractContextManager[Any]:
    if torch_device.type == "cpu":
        return nullcontext()
    torch.cuda.set_device(torch_device)
    return torch.cuda.stream(torch.cuda.Stream(torch_device))  # type: ignore[no-untyped-call]


def _raise_in(thread: int, error: type[BaseException]) -> None:
    """Make a thread raise: compilers cannot be told to stop, and a run's end should not wait for them."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(error))


def _in_a_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
