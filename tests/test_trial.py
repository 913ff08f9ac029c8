"""Another runtime is taken where it is exact and faster, and only for long runs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio
from torch import Tensor

from ingestor.device import DeviceBatch, open_device
from ingestor.encoding.encoder import Encoder
from ingestor.encoding.loading import Loader
from ingestor.encoding.model import resolve
from ingestor.encoding.trial import LONG_TOKENS, fastest
from ingestor.records import Int32s
from tests.models import save_model
from tests.test_loading import chunks, nothing

FOR_EVER = 1e15


class Repeated:
    """Gives an encoder's vectors, or others, after computing them so many times."""

    packed = False

    def __init__(self, encoder: Encoder, times: int, *, wrong: bool = False) -> None:
        self.dimension = encoder.dimension
        self._encoder = encoder
        self._times = times
        self._wrong = wrong

    def forward(self, batch: DeviceBatch) -> Tensor:
        for _ in range(self._times):
            vectors = self._encoder.forward(batch)
        return vectors.roll(1, 1) if self._wrong else vectors


async def sample() -> Sequence[Int32s]:
    return chunks(24)


@pytest_asyncio.fixture
async def loader(tmp_path: Path) -> AsyncIterator[Loader]:
    save_model(tmp_path, "bert", gentle=True)
    device = open_device("cpu", threads=1)
    yield Loader(resolve(str(tmp_path / "model")), device, tmp_path / "kept")
    await device.close()


@pytest.mark.parametrize("work_tokens", [0, LONG_TOKENS])
async def test_nothing_is_tried_for_short_work(loader: Loader, work_tokens: int) -> None:
    ours = await loader.torch("auto")
    asked = nothing if work_tokens < LONG_TOKENS else sample
    assert await fastest(loader, ours, asked, work_tokens) is ours
    assert not loader.folder.exists()


async def test_what_is_faster_is_taken_if_it_is_exact(loader: Loader) -> None:
    ours = await loader.torch("auto")
    slow = replace(ours, encoder=Repeated(ours.encoder, 6))
    assert (await fastest(loader, slow, sample, FOR_EVER)).runtime == "openvino"
    wrong = replace(ours, encoder=Repeated(ours.encoder, 6, wrong=True))
    assert await fastest(loader, wrong, sample, FOR_EVER) is wrong


async def test_what_cannot_be_exported_stays_with_torch(loader: Loader) -> None:
    ours = await loader.torch("auto")
    loader.folder.write_text("in the way of the folder")
    assert await fastest(loader, ours, sample, FOR_EVER) is ours
