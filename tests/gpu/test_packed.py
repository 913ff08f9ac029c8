"""On a GPU: packed, padded and one text at a time give the same vectors, in any batch and any order."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

from ingestor.cuda import CudaDevice
from ingestor.device import open_device
from ingestor.encoding.encoder import embed, load_encoder, load_model
from ingestor.encoding.families import PACKED
from ingestor.encoding.head import Head
from ingestor.encoding.model import resolve
from ingestor.encoding.packed import PackedEncoder
from ingestor.encoding.padded import PaddedEncoder, TorchHidden
from tests.fakes import chunk_block, token_batch
from tests.models import save_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]

FLOOR = {"float16": 0.9999, "bfloat16": 0.999}
Vectors = npt.NDArray[np.float32]


@pytest.fixture
def device() -> Iterator[CudaDevice]:
    device = open_device("cuda")
    assert isinstance(device, CudaDevice)
    yield device
    device._finish()


def lowest_cosine(found: Vectors, expected: Vectors) -> float:
    return float((found * expected).sum(1).min())


def chunks() -> list[list[int]]:
    lengths = np.random.default_rng(5).integers(1, 120, 60).tolist()
    block = chunk_block(lengths, vocabulary=140)
    return [part.tolist() for part in np.split(block.tokens, block.offsets[1:-1])]


@pytest.mark.parametrize("family", PACKED)
@pytest.mark.parametrize("pooling", ["mean", "cls", "lasttoken"])
@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_packed_is_padded_is_one_at_a_time(
    device: CudaDevice, tmp_path: Path, family: str, pooling: str, precision: str
) -> None:
    save_model(tmp_path, family, pooling=pooling, gentle=True)
    spec = resolve(str(tmp_path / "model"))
    texts = chunks()
    cpu = open_device("cpu")
    exact = embed(token_batch(texts), encoder=load_encoder(spec, device=cpu), device=cpu)
    encoder = load_encoder(spec, device=device, precision=precision)
    assert isinstance(encoder, PackedEncoder)
    packed = embed(token_batch(texts), encoder=encoder, device=device)
    alone = np.concatenate([embed(token_batch([t]), encoder=encoder, device=device) for t in texts])
    backwards = embed(token_batch(texts[::-1]), encoder=encoder, device=device)[::-1]
    half = load_model(spec, getattr(torch, precision)).to(device.torch_device)
    padded = embed(
        token_batch(texts), encoder=PaddedEncoder(TorchHidden(half, spec), Head(spec)), device=device
    )
    for found in (packed, alone, backwards, padded):
        assert lowest_cosine(found, exact) >= FLOOR[precision]


def test_float32_and_families_that_cannot_be_packed_are_padded(device: CudaDevice, tmp_path: Path) -> None:
    save_model(tmp_path / "a", "bert")
    save_model(tmp_path / "b", "mpnet")
    bert, mpnet = resolve(str(tmp_path / "a/model")), resolve(str(tmp_path / "b/model"))
    assert isinstance(load_encoder(bert, device=device, precision="float32"), PaddedEncoder)
    assert isinstance(load_encoder(mpnet, device=device), PaddedEncoder)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("family", PACKED)
@pytest.mark.parametrize("pooling", ["mean", "cls", "lasttoken"])
def test_a_packed_forward_never_waits_for_the_device(
    device: CudaDevice, tmp_path: Path, family: str, pooling: str
) -> None:
    save_model(tmp_path, family, pooling=pooling)
    encoder = load_encoder(resolve(str(tmp_path / "model")), device=device)
    batch = device.upload(token_batch(chunks()))
    device.compute(batch, encoder.forward)  # the first time, libraries set themselves up
    torch.cuda.set_sync_debug_mode("error")
    try:
        device.compute(batch, encoder.forward)
    finally:
        torch.cuda.set_sync_debug_mode("default")
