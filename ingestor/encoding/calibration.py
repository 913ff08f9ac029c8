"""The chunks that an 8-bit model was fitted to: they name it, and can make it again."""

from __future__ import annotations

import hashlib
import io
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from zipfile import BadZipFile

import numpy as np

from ingestor.encoding.quality import cosines
from ingestor.errors import IdentityMismatchError
from ingestor.records import Float32s, Int32s
from ingestor.telemetry import logger

T = TypeVar("T")

CHUNKS = 128
"""More take longer and bring nothing: docs/adr/0008."""
PROBES = 16
FILE = "calibration.npz"
"""Beside an 8-bit model."""
SAME = 0.9995
"""Lowest cosine of a probe's vector to the one that was recorded. It is 1 on the same kind of processor; a
model that was fitted to other chunks, or a processor whose products of eight bits overflow, is at 0.998 or
less.
"""


@dataclass(frozen=True, slots=True)
class Calibration:
    """What is kept in the state file of an 8-bit model.

    Attributes:
        revision: of the model.
        tokens: of each chunk that the ranges of its activations were taken from.
        probes: float32[PROBES or fewer, dimension], the vectors that it gave the first of these chunks.
    """

    revision: str
    tokens: tuple[Int32s, ...]
    probes: Float32s | None = None

    @property
    def id(self) -> str:
        """Names the quantized model: part of the vectors' identity."""
        digest = hashlib.blake2b(self.revision.encode(), digest_size=8)
        for ids in self.tokens:
            digest.update(len(ids).to_bytes(4, "little") + ids.astype("<i4").tobytes())
        return digest.hexdigest()

    def check(self, found: Float32s, model: Path) -> None:
        """Hold the probes' vectors against those that were recorded.

        Args:
            found: float32[PROBES or fewer, dimension].
            model: the folder of the model that gave them.

        Raises:
            IdentityMismatchError: it is not the model that the collection was written with.
        """
        assert self.probes is not None
        lowest = float(cosines(found, self.probes).min())
        if not lowest >= SAME:
            raise IdentityMismatchError(
                f"{model}: the 8-bit model {self.id} gives other vectors than when it was made (cosine"
                f" {lowest:.5f}). Remove this folder, and it is made again from the state file; where that"
                " does not help, go back to the processor and the versions that it was made with, or"
                " --recreate to make a new one and embed everything anew"
            )

    def to_bytes(self) -> bytes:
        file = io.BytesIO()
        np.savez_compressed(
            file,
            revision=np.array(self.revision),
            tokens=np.concatenate(self.tokens),
            lengths=np.array([len(ids) for ids in self.tokens]),
            probes=np.zeros((0, 0), np.float32) if self.probes is None else self.probes,
        )
        return file.getvalue()

    @classmethod
    def from_bytes(cls, stored: bytes) -> Calibration:
        """What `to_bytes` gave.

        Raises:
            ValueError: these are other bytes.
        """
        try:
            with np.load(io.BytesIO(stored)) as file:
                ends = np.cumsum(file["lengths"])
                revision, tokens = str(file["revision"]), tuple(np.split(file["tokens"], ends[:-1]))
                probes = file["probes"]
        except (OSError, EOFError, LookupError, TypeError, ValueError, BadZipFile, zlib.error) as error:
            raise ValueError("it is damaged") from error
        return cls(revision, tokens, probes if len(probes) else None)


def recall(folder: Path, id_: str) -> Calibration | None:
    """What the 8-bit model with this id was fitted to, if it is one of those that are kept in the folder."""
    for path in folder.glob(f"*/{FILE}"):
        try:
            found = Calibration.from_bytes(path.read_bytes())
        except (OSError, ValueError) as error:
            logger().warning("models", file=str(path), error=str(error), then="passed over")
            continue
        if found.id == id_:
            return found
    return None


def spread(items: Sequence[T], count: int) -> list[T]:
    """At most `count` of the items, evenly spread over all."""
    if len(items) <= count:
        return list(items)
    return [items[place] for place in np.linspace(0, len(items) - 1, count).astype(int)]
