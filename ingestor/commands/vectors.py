"""Embedding a few texts for a command, in this process, with the model that the settings name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from ingestor.config.settings import Settings
from ingestor.encoding.calibration import Calibration, recall
from ingestor.encoding.model import ModelSpec
from ingestor.errors import IdentityMismatchError
from ingestor.preparing.tokenizer import load_tokenizer
from ingestor.records import Float32s, Int32s
from ingestor.running import wiring
from ingestor.running.engine import device_of
from ingestor.sink import Reader
from ingestor.sink.collection import differing
from ingestor.state.lookup import read_meta

TooLong = Callable[[int, int, int], None]
"""Takes a text's row, the tokens that the model takes, and the tokens that the text has."""


def ignore(*_: object) -> None:
    """Do nothing."""


def check_model(reader: Reader, spec: ModelSpec, settings: Settings) -> None:
    """Refuse a collection whose vectors cannot be compared with the model's.

    Raises:
        IdentityMismatchError: it was written with another one.
    """
    here = wiring.identity_of(settings, spec)["vector"]
    if said := differing((reader.identity() or {}).get("vector", here), here):
        raise IdentityMismatchError(
            f"collection {settings.qdrant.collection!r} holds vectors of another model ({said});"
            " use the configuration that it was written with"
        )


def embed(
    settings: Settings,
    spec: ModelSpec,
    reader: Reader,
    texts: Sequence[str],
    *,
    prompt: str,
    too_long: TooLong = ignore,
) -> Float32s:
    """float32[n, dimension], the vector of each text behind the prompt, cut to what the model takes.

    Args:
        settings: the configuration.
        spec: the model's.
        reader: of the collection, which names an 8-bit model.
        texts: one or more.
        prompt: put before each.
        too_long: told of each text that is cut.

    Raises:
        IdentityMismatchError: the collection's 8-bit model is not to be had.
    """
    tokenizer = load_tokenizer(spec)
    room = spec.max_tokens - len(tokenizer.prefix) - len(tokenizer.suffix)
    tokens = []
    for row, ids in enumerate(tokenizer.ids([prompt + text for text in texts])):
        if len(ids) > room:
            too_long(row, room, len(ids))
        tokens.append(np.concatenate([tokenizer.prefix, ids[:room], tokenizer.suffix]).astype(np.int32))
    return asyncio.run(encode(settings, spec, calibration_of(settings, reader), tokens))


async def encode(
    settings: Settings, spec: ModelSpec, calibration: Calibration | None, tokens: Sequence[Int32s]
) -> Float32s:
    """float32[n, dimension]."""
    from ingestor.device import open_device
    from ingestor.encoding.loading import Loader

    async def no_sample() -> Sequence[Int32s]:
        return ()

    device = open_device(device_of(settings))
    loader = Loader(spec, device, wiring.kept_models(settings))
    loaded = await loader.load(settings.encoder, calibration, no_sample)
    vectors = await loader.embed(loaded.encoder, tokens)
    await device.close()
    return vectors


def calibration_of(settings: Settings, reader: Reader) -> Calibration | None:
    """What the collection's 8-bit model was fitted to, if it has one.

    Raises:
        IdentityMismatchError: neither the state file nor the kept models know it.
    """
    if (id_ := (reader.identity() or {}).get("calibration")) is None:
        return None
    state = Path(settings.state)
    stored = read_meta(state, "calibration") if state.exists() else None
    known = Calibration.from_bytes(stored) if stored else None
    found = known if known and known.id == id_ else recall(wiring.kept_models(settings), id_)
    if found is None:
        raise IdentityMismatchError(
            f"collection {settings.qdrant.collection!r} was written with the 8-bit model {id_}, which neither"
            f" {settings.state} nor {wiring.kept_models(settings)} knows; bring one of them here"
        )
    return found
