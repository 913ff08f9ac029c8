"""How good the vectors of a form of the model are, held against those of float32."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ingestor.errors import EncoderError
from ingestor.records import Float32s

NEAREST = 10
SAME_MODEL = {"float32": 0.99999, "float16": 0.9999, "bfloat16": 0.999}
"""Lowest cosine to torch's float32 that a precision stands for, whatever computes it."""


@dataclass(frozen=True, slots=True)
class Quality:
    """What was found with some chunks of the run.

    Attributes:
        runtime, precision: the form of the model; the runtime of ONNX with its provider.
        chunks: how many were embedded in both forms.
        mean_cosine, lowest_cosine: between the two vectors of a chunk.
        neighbours: share of each chunk's nearest ten, or of all where there are fewer, that stay the same;
            None where there is nothing to compare with.
    """

    runtime: str
    precision: str
    chunks: int
    mean_cosine: float
    lowest_cosine: float
    neighbours: float | None

    def __str__(self) -> str:
        near = "" if self.neighbours is None else f", {self.neighbours:.3f} of the ten nearest the same"
        return (
            f"{self.precision} by {self.runtime} against float32, {self.chunks} chunks: cosine"
            f" {self.mean_cosine:.5f} on average, {self.lowest_cosine:.5f} at least{near}"
        )

    def demand(self, floor: float) -> None:
        """Refuse vectors that are not good enough.

        Args:
            floor: for the mean cosine of eight bits; other precisions have bounds of their own.

        Raises:
            EncoderError: says what to do.
        """
        least = SAME_MODEL.get(self.precision)
        if least is not None and not self.lowest_cosine >= least:
            raise EncoderError(
                f"{self}; at least {least} is demanded of {self.precision}, so nothing was written. Set"
                " encoder.runtime to torch"
            )
        if least is None and not self.mean_cosine >= floor:
            raise EncoderError(
                f"{self}; that is below encoder.quality_floor ({floor}), so nothing was written. Set"
                " encoder.precision to auto, take another model, or lower encoder.quality_floor; an int8"
                " model that was fitted to few chunks, or to others, is made anew by --recreate"
            )


def compare(exact: Float32s, found: Float32s, *, runtime: str, precision: str) -> Quality:
    """Hold float32[n, dimension] of some chunks against the same chunks' vectors in float32, one or more."""
    near = cosines(exact, found)
    same = _kept_neighbours(exact, found)
    return Quality(runtime, precision, len(exact), float(near.mean()), float(near.min()), same)


def cosines(left: Float32s, right: Float32s) -> Float32s:
    """float32[n], of the vectors in the same rows; 0 where one of them is all zero."""
    norms = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    return np.asarray((left * right).sum(1) / np.maximum(norms, np.finfo(np.float32).tiny), np.float32)


def _kept_neighbours(exact: Float32s, found: Float32s) -> float | None:
    count = min(NEAREST, len(exact) - 2)  # with all others as neighbours they would stay the same always
    if count < 1:
        return None
    left, right = _nearest(exact, count), _nearest(found, count)
    same = [len(np.intersect1d(*pair)) for pair in zip(left, right, strict=True)]
    return float(np.mean(same)) / count


def _nearest(vectors: Float32s, count: int) -> npt.NDArray[np.intp]:
    """intp[n, count]: for each vector the rows of those that are nearest to it by cosine."""
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-30)
    near = unit @ unit.T
    np.fill_diagonal(near, -np.inf)
    return np.argpartition(-near, count - 1, axis=1)[:, :count]
