"""A model is compiled before the run, which does not depend on that."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import structlog
import torch
from torch import Tensor
from torch._dynamo.utils import counters
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface

from ingestor.device import DeviceBatch
from ingestor.encoding.compiling import CompiledEncoder, compile_encoder
from ingestor.encoding.encoder import Encoder, load_model
from ingestor.encoding.model import resolve
from ingestor.encoding.packed import PackedEncoder, with_layers_compiled
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


async def compiled(eager: Any, stop: asyncio.Event | None = None) -> Encoder:
    async with asyncio.timeout(60):
        return await compile_encoder(eager, CPU, tokens=4096, max_tokens=100, stop=stop or asyncio.Event())


def fails(error: Exception) -> Callable[[], object]:
    def raise_it() -> None:
        raise error

    return raise_it


async def test_batches_of_some_size_run_compiled() -> None:
    twin = Counted()
    eager = Counted(twin)
    encoder = await compiled(eager)
    before = eager.forwards, twin.forwards
    assert before == (2, 2)  # made-up batches
    assert encoder.forward(batch()).shape == (20, 2)
    assert (eager.forwards, twin.forwards) == (2, 3)
    encoder.forward(batch(1))  # too small to bother
    encoder.forward(batch(2))
    assert (eager.forwards, twin.forwards) == (4, 3)


async def test_a_compiler_that_fails_is_a_warning() -> None:
    eager = Counted(Counted(before=fails(SyntaxError("no\nC++ compiler"))))
    with structlog.testing.capture_logs() as logs:
        assert await compiled(eager) is eager
    _, warning = logs
    assert (warning["log_level"], warning["error"]) == ("warning", "no C++ compiler")


async def test_other_vectors_are_refused() -> None:
    class Wrong(Counted):
        def forward(self, batch: DeviceBatch) -> Tensor:
            return torch.tensor([[1.0, 0.0]]).repeat(batch.rows, 1)

    eager = Counted(Wrong())
    with structlog.testing.capture_logs() as logs:
        assert await compiled(eager) is eager
    assert "other vectors: cosine 0.70711" in logs[1]["error"]


async def test_what_would_be_compiled_again_runs_as_it_is() -> None:
    twin = Counted()
    encoder = await compiled(Counted(twin))
    twin._before = fails(RuntimeError("recompile"))
    with structlog.testing.capture_logs() as logs:
        for _ in range(10):
            assert encoder.forward(batch()).shape == (20, 2)
    assert twin.forwards == 2 + 8  # two made-up batches before
    assert [log["log_level"] for log in logs] == ["warning"]


async def test_memory_that_runs_out_is_told_to_whoever_can_halve_the_batch() -> None:
    twin = Counted()
    encoder = await compiled(Counted(twin))
    twin._before = fails(torch.OutOfMemoryError())
    with pytest.raises(torch.OutOfMemoryError):
        encoder.forward(batch())
    twin._before = lambda: None
    encoder.forward(batch())
    assert twin.forwards == 2 + 2


class Endless:
    """A compiler that never ends; says when it has begun."""

    def __init__(self) -> None:
        self.begun = threading.Event()

    def __call__(self) -> None:
        self.begun.set()
        while True:
            time.sleep(0.001)


async def test_a_stop_does_not_wait_for_the_compiler() -> None:
    endless, stop = Endless(), asyncio.Event()
    eager = Counted(Counted(before=endless))
    with structlog.testing.capture_logs() as logs:
        async with asyncio.timeout(20), asyncio.TaskGroup() as group:
            compiling = group.create_task(compiled(eager, stop))
            await asyncio.to_thread(endless.begun.wait, 10)
            stop.set()
        assert compiling.result() is eager
    assert [log["log_level"] for log in logs] == ["info"]


async def test_a_run_that_fails_meanwhile_leaves_no_compiler_behind() -> None:
    endless = Endless()
    compiling = asyncio.ensure_future(compiled(Counted(Counted(before=endless))))
    await asyncio.to_thread(endless.begun.wait, 10)
    compiling.cancel()
    async with asyncio.timeout(20):
        with pytest.raises(asyncio.CancelledError):
            await compiling
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("compile")]


async def test_a_compiler_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ingestor.encoding.compiling.LIMIT_S", 0.1)
    eager = Counted(Counted(before=Endless()))
    with structlog.testing.capture_logs() as logs:
        assert await compiled(eager) is eager
    assert "given up" in logs[1]["error"]


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


@pytest.mark.whole
@pytest.mark.parametrize("family", ["bert", "xlm-roberta", "gemma3_text"])
async def test_a_layer_is_compiled_once_for_all_layers_and_batches(
    family: str, tmp_path: Path, opaque_attention: str
) -> None:
    save_model(tmp_path, family, gentle=True)
    spec = resolve(str(tmp_path / "model"))
    eager = Quick(load_model(spec, torch.float32), spec, attention=opaque_attention)
    torch.compiler.reset()
    counters["stats"].clear()
    with torch.inference_mode(), structlog.testing.capture_logs() as logs:
        encoder = await compiled(eager)
        assert isinstance(encoder, CompiledEncoder), logs
        for number in range(2, 12):
            lengths = [100, *range(1, 8 * number)]
            some = on_cpu(token_batch(_chunks(lengths, number)))
            torch.testing.assert_close(encoder.forward(some), eager.forward(some), atol=1e-4, rtol=1e-4)
    assert encoder._refusals == 0
    assert counters["stats"]["unique_graphs"] == 1


def test_a_model_with_compiled_layers_takes_no_more_memory(tmp_path: Path) -> None:
    save_model(tmp_path, "bert")
    model = load_model(resolve(str(tmp_path / "model")), torch.float32)
    twin = with_layers_compiled(model, "eager")
    tensors = {name: tensor.data_ptr() for name, tensor in model.state_dict().items()}
    assert {name: tensor.data_ptr() for name, tensor in twin.state_dict().items()} == tensors
    assert not any(part._compiled_call_impl for part in model.modules())  # the model as it is stays so


def _chunks(lengths: list[int], number: int) -> list[list[int]]:
    block = chunk_block([min(length, 100) for length in lengths], number=number, vocabulary=140)
    return [block.tokens[start:end].tolist() for start, end in pairwise(block.offsets.tolist())]
