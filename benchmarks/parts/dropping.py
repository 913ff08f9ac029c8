"""A sink that drops what it gets, to see what the stages before it can do."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingestor.records import Applied, UpsertRequest
from ingestor.sink.waits import Waits, nowhere


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer that is there already."""

    applied: Applied

    def done(self) -> bool:
        return True


class Dropping:
    """Stands for a `SinkPool`; a request is applied at once.

    Attributes:
        arrivals: (time, points) of each request.
    """

    processes = 1
    differences = ()

    def __init__(self) -> None:
        self.arrivals: list[tuple[float, int]] = []
        self.waits = Waits(nowhere)

    async def open(self, target: Any, **_: Any) -> Any:
        """In place of `SinkPool.open`."""
        return self

    async def attach(self, buffers: Any) -> None:
        pass

    def submit(self, request: UpsertRequest) -> Answered:
        self.arrivals.append((time.perf_counter(), len(request.points)))
        refused = tuple((int(row), "non_finite", "") for row in request.refused)
        return Answered(Applied(request.points.documents, refused))

    async def applied(self, asked: Answered) -> Applied:
        return asked.applied

    async def delete(self, ids: np.ndarray[Any, Any]) -> None:
        pass

    async def flush(self) -> None:
        pass

    async def optimize(self) -> None:
        pass

    async def close(self) -> None:
        pass
