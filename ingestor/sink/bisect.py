"""Finding the points that a collection refuses, so that those beside them are written."""

from __future__ import annotations

from collections.abc import Callable

from ingestor.errors import SinkError
from ingestor.sink import Refusal, RefusedError

SAME_FATE = 8
"""Points; where all of so many are refused, it is not for what is in them."""


def write_or_bisect(write: Callable[[int, int], None], start: int, stop: int, *, name: str) -> list[Refusal]:
    """Write points [start, stop); if they are refused, find those that are to blame and write the others.

    Args:
        write: writes some of them, or raises RefusedError.
        start, stop: which.
        name: of the collection, for people.

    Raises:
        SinkError: there are many of them, and all are refused.
    """
    refused = _bisect(write, start, stop)
    kinds = {kind for _, kind, _ in refused}
    if len(refused) == stop - start >= SAME_FATE and kinds == {"refused"}:
        raise SinkError(f"{name}: it refuses every point: {refused[0][2]}")
    return refused


def _bisect(write: Callable[[int, int], None], start: int, stop: int) -> list[Refusal]:
    try:
        write(start, stop)
    except RefusedError as error:
        if stop - start == 1:
            return [(start, error.kind, error.detail)]
        middle = (start + stop) // 2
        return _bisect(write, start, middle) + _bisect(write, middle, stop)
    return []
