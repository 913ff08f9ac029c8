"""A run goes on while its model is compiled, and does not depend on that."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import structlog
import torch
from torch import Tensor
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface

from ingestor.compiling import CompilingEncoder
from ingestor.device import DeviceBatch
from ingestor.encoder import Encoder, load_model
from ingestor.model import resolve
from ingestor.packed import PackedEncoder
from tests.fakes import chunk_block, token_batch
from tests.models import on_cpu, save_model

CPU = torch.device("cpu")


class Counted:
    """An encoder whose vectors are all the same; counts its forwards, after `before` each time."""

    packed = True
    dimension = 2

    def __init__(self, twin: Counted | None = None, before: Callable[[], object] = lambda: None) -> None:
        self._twin, self._before = twin, before
        self.forwards = 0

    def compiled(self, most_tokens: int) -> Encoder:
        assert self._twin is not None
        return self._twin

    def forward(self, batch: DeviceBatch) -> Tensor:
        self.forwards += 1
        self._before()
        return torch.ones(batch.rows, 2)


def batch(rows: int = 20) -> DeviceBatch:
    return on_cpu(token_batch([[1] * 100] * rows))


@asynccontextmanager
async def compiling(eager: Any) -> AsyncIterator[CompilingEncoder]:
    encoder = CompilingEncoder(eager, CPU, tokens=4096, max_tokens=128)
    try:
        yield encoder
    finally:
        async with asyncio.timeout(20):
            await encoder.close()


async def ended(encoder: CompilingEncoder) -> None:
    """Waits until the thread has done its work."""
    async with asyncio.timeout(60):
        await asyncio.wrap_future(encoder._thread.submit(int))


async def test_batches_run_as_they_are_until_the_compiled_form_is_there() -> None:
    may_end = threading.Event()
    twin = Counted(before=may_end.wait)
    eager = Counted(twin)
    async with compiling(eager) as encoder:
        encoder.forward(batch())
        assert eager.forwards == 1
        may_end.set()
        await ended(encoder)
        before = eager.forwards, twin.forwards
        assert encoder.forward(batch()).shape == (20, 2)
        assert (eager.forwards, twin.forwards) == (before[0], before[1] + 1)
        encoder.forward(batch(1))  # too small to bother
        encoder.forward(batch(2))
        assert (eager.forwards, twin.forwards) == (before[0] + 2, before[1] + 1)


def fails(error: Exception) -> Callable[[], object]:
    def raise_it() -> None:
        raise error

    return raise_it


async def test_a_compiler_that_fails_is_a_warning() -> None:
    eager = Counted(Counted(before=fails(SyntaxError("no\nC++ compiler"))))
    with structlog.testing.capture_logs() as logs:
        async with compiling(eager) as encoder:
            await ended(encoder)
            encoder.forward(batch())
    [warning] = logs
    assert (warning["log_level"], warning["error"]) == ("warning", "no C++ compiler")
    assert eager.forwards == 1


async def test_other_vectors_are_refused() -> None:
    class Wrong(Counted):
        def forward(self, batch: DeviceBatch) -> Tensor:
            return torch.tensor([[1.0, 0.0]]).repeat(batch.rows, 1)

    with structlog.testing.capture_logs() as logs:
        async with compiling(Counted(Wrong())) as encoder:
            await ended(encoder)
            assert encoder._compiled is None
    assert "other vectors: cosine 0.70711" in logs[0]["error"]


async def test_what_would_be_compiled_again_runs_as_it_is() -> None:
    twin = Counted()
    async with compiling(Counted(twin)) as encoder:
        await ended(encoder)
        twin._before = fails(RuntimeError("recompile"))
        with structlog.testing.capture_logs() as logs:
            for _ in range(10):
                assert encoder.forward(batch()).shape == (20, 2)
    assert twin.forwards == 2 + 8  # two made-up batches before
    assert [log["log_level"] for log in logs] == ["warning"]


async def test_memory_that_runs_out_is_told_to_whoever_can_halve_the_batch() -> None:
    twin = Counted()
    async with compiling(Counted(twin)) as encoder:
        await ended(encoder)
        twin._before = fails(torch.OutOfMemoryError())
        with pytest.raises(torch.OutOfMemoryError):
            encoder.forward(batch())
        assert encoder._compiled is twin


async def test_the_end_of_a_run_does_not_wait_for_the_compiler() -> None:
    started = threading.Event()

    def endless() -> None:
        started.set()
        while True:
            time.sleep(0.001)

    with structlog.testing.capture_logs() as logs:
        async with compiling(Counted(Counted(before=endless))):
            assert started.wait(10)
    assert logs == []


@pytest.fixture(scope="module")
def opaque_attention() -> str:
    """Attention as a compiler sees the real one: a single call whose inside is none of its business."""

    @torch.library.custom_op("ingestor_tests::attention", mutates_args=())
    def attend(query: Tensor, key: Tensor, value: Tensor, ends: Tensor, scale: float) -> Tensor:
        found = torch.empty_like(query)
        for start, end in pairwise(ends.tolist()):
            parts = (states[:, :, start:end] for states in (query, key, value))
            found[:, :, start:end] = functional.scaled_dot_product_attention(*parts, scale=scale)
        return found

    @attend.register_fake
    def _(query: Tensor, key: Tensor, value: Tensor, ends: Tensor, scale: float) -> Tensor:
        return torch.empty_like(query)

    def attention(
        module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
    ) -> tuple[Tensor, None]:
        assert options["max_length_q"] == 100
        query, key, value = (states.contiguous() for states in (query, key, value))
        found = attend(query, key, value, options["cu_seq_lens_q"], options["scaling"])
        return found.transpose(1, 2), None

    AttentionInterface.register("opaque", attention)
    AttentionMaskInterface.register("opaque", lambda *_, **__: None)
    return "opaque"


class Quick(PackedEncoder):
    """Traced as for the GPU, but run by torch itself: C++ would take minutes here."""

    def compiled(self, most_tokens: int) -> PackedEncoder:  # type: ignore[override]
        return super().compiled(most_tokens, backend="aot_eager")


@pytest.mark.parametrize("family", ["bert", "xlm-roberta"])
async def test_a_real_model_is_compiled_once_for_all_batches_while_others_run(
    family: str, tmp_path: Path, opaque_attention: str
) -> None:
    save_model(tmp_path, family, gentle=True)
    spec = resolve(str(tmp_path / "model"))
    eager = Quick(load_model(spec, torch.float32), spec, attention=opaque_attention)
    first = on_cpu(token_batch([list(range(5, 105))] * 12))
    with torch.inference_mode():
        expected = eager.forward(first)
    encoder = CompilingEncoder(eager, CPU, tokens=4096, max_tokens=100)
    during = 0
    with torch.inference_mode(), structlog.testing.capture_logs() as logs:
        while encoder._compiled is None:
            assert torch.equal(encoder.forward(first), expected)  # whatever the compiler does meanwhile
            during += 1
            assert not [log for log in logs if log["log_level"] == "warning"]
        for number in range(2, 12):
            lengths = [100, *range(1, 8 * number)]
            some = on_cpu(token_batch(_chunks(lengths, number)))
            torch.testing.assert_close(encoder.forward(some), eager.forward(some), atol=1e-4, rtol=1e-4)
    assert during
    assert encoder._refusals == 0
    await encoder.close()


def _chunks(lengths: list[int], number: int) -> list[list[int]]:
    block = chunk_block([min(length, 100) for length in lengths], number=number, vocabulary=140)
    return [block.tokens[start:end].tolist() for start, end in pairwise(block.offsets.tolist())]
