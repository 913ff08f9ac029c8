"""Embedding a few texts for a command, in this process, with the model that the settings name."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ingestor import wiring
from ingestor.config import Settings
from ingestor.errors import IdentityMismatchError
from ingestor.model import ModelSpec
from ingestor.records import Batch, Int32s, Points
from ingestor.sink import Float32s, Reader
from ingestor.tokenizer import load_tokenizer

TooLong = Callable[[int, int, int], None]
"""Takes a text's row, the tokens that the model takes, and the tokens that the text has."""

TEXTS_PER_BATCH = 32


def ignore(*_: object) -> None:
    """Do nothing."""


def check_model(reader: Reader, spec: ModelSpec, settings: Settings) -> None:
    """Refuse a collection whose vectors cannot be compared with the model's.

    Raises:
        IdentityMismatchError: it was written with another one.
    """
    qdrant = settings.qdrant
    wanted = wiring.identity_of(settings, spec)["vector"]
    stored = (reader.identity() or {}).get("vector", wanted)
    if differing := [name for name in wanted if stored.get(name) != wanted[name]]:
        says = "; ".join(f"{name}: {stored.get(name)!r} there, {wanted[name]!r} here" for name in differing)
        raise IdentityMismatchError(
            f"collection {qdrant.collection!r} holds vectors of another model ({says});"
            " use the configuration that it was written with"
        )


def embed(
    settings: Settings, spec: ModelSpec, texts: Sequence[str], *, prompt: str, too_long: TooLong = ignore
) -> Float32s:
    """float32[n, dimension], the vector of each text behind the prompt, cut to what the model takes.

    Args:
        too_long: told of each text that is cut.
    """
    tokenizer = load_tokenizer(spec)
    room = spec.max_tokens - len(tokenizer.prefix) - len(tokenizer.suffix)
    tokens = []
    for row, ids in enumerate(tokenizer.ids([prompt + text for text in texts])):
        if len(ids) > room:
            too_long(row, room, len(ids))
        tokens.append(np.concatenate([tokenizer.prefix, ids[:room], tokenizer.suffix]).astype(np.int32))
    return encode(settings, spec, tokens)


def encode(settings: Settings, spec: ModelSpec, tokens: Sequence[Int32s]) -> Float32s:
    """float32[n, dimension]; texts of like length go together."""
    from ingestor.device import open_device
    from ingestor.encoder import load_encoder

    device = open_device(settings.encoder.device)
    encoder = load_encoder(spec, device=device, precision=settings.encoder.precision)
    vectors = np.empty((len(tokens), spec.dimension), np.float32)
    order = np.argsort([len(ids) for ids in tokens], kind="stable")
    for rows in np.split(order, range(TEXTS_PER_BATCH, len(order), TEXTS_PER_BATCH)):
        batch = device.upload(batch_of([tokens[row] for row in rows]))
        found = device.compute(batch, encoder.forward)
        found.ready.synchronize()
        vectors[rows] = found.vectors.cpu().numpy()
    return vectors


def batch_of(tokens: Sequence[Int32s]) -> Batch:
    offsets = np.concatenate([[0], np.cumsum([len(ids) for ids in tokens])]).astype(np.int64)
    rows = len(tokens)
    nobody = Points(np.zeros(rows, np.int64), np.zeros((rows, 16), np.uint8), [b""] * rows)
    return Batch(np.concatenate(tokens), offsets, nobody)
