"""Reading a collection of the embedded engine, in a process that has it to itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from heapq import nlargest, nsmallest
from operator import attrgetter
from typing import Any
from uuid import UUID

import numpy as np
import qdrant_edge as edge

from ingestor.errors import NothingThereError
from ingestor.records import Float32s
from ingestor.sink import Hit, IndexState, Stored, Target
from ingestor.sink.engine import engine_errors, load_shard
from ingestor.sink.folder import folder_of, read_manifest

PAGE = 256  # points read at once


class EmbeddedReader:
    """Reads a collection in this process; nothing else can have it open meanwhile."""

    def __init__(self, target: Target) -> None:
        self._target = target
        manifest = read_manifest(folder_of(target))
        if manifest is None:
            raise NothingThereError(f"{target}: there is none yet; a run makes it")
        self._identity: dict[str, Any] = manifest["identity"]
        self._best = nsmallest if manifest["vector"]["distance"] in ("Euclid", "Manhattan") else nlargest
        self._shards: list[edge.EdgeShard] = []
        for directory in range(manifest["directories"]):
            self._shards.append(load_shard(folder_of(target) / str(directory)))

    def search(
        self,
        vectors: Float32s,
        k: int,
        *,
        exact: bool = False,
        filter: Mapping[str, str | int] | None = None,  # noqa: A002
    ) -> list[list[Hit]]:
        """The k nearest chunks of each of float32[n, dimension], best first."""
        conditions: list[Any] = [
            edge.FieldCondition(key=key, match=edge.MatchValue(value=_word(value)))
            for key, value in (filter or {}).items()
        ]
        return [self._nearest(vector, k, exact, edge.Filter(must=conditions)) for vector in vectors.tolist()]

    def _nearest(self, vector: list[float], k: int, exact: bool, where: edge.Filter) -> list[Hit]:
        request = edge.QueryRequest(
            query=edge.Query.Nearest(vector, using=self._target.vector_name),
            limit=k,
            filter=where,
            with_payload=True,
            params=edge.SearchParams(exact=exact),
        )
        with engine_errors(folder_of(self._target)):
            found = [point for shard in self._shards for point in shard.query(request)]
        return [
            Hit.of(point.score, point.payload or {})
            for point in self._best(k, found, key=attrgetter("score"))
        ]

    def count(self) -> int:
        """Points in the collection."""
        return sum(int(shard.count(edge.CountRequest(exact=True))) for shard in self._shards)

    def identity(self) -> dict[str, Any] | None:
        """What the collection was written with."""
        return self._identity

    def scan(self, fields: Sequence[str] | None = None, *, vectors: bool = False) -> Iterator[list[Stored]]:
        """Every point, a page at a time, directory by directory."""
        payload = True if fields is None else list(fields)
        for shard in self._shards:
            offset = None
            while True:
                request = edge.ScrollRequest(
                    limit=PAGE, offset=offset, with_vector=vectors, with_payload=payload
                )
                with engine_errors(folder_of(self._target)):
                    page, offset = shard.scroll(request)
                yield [self._stored(point) for point in page]
                if offset is None:
                    break

    def retrieve(
        self, ids: Sequence[bytes], fields: Sequence[str] | None = None, *, vectors: bool = False
    ) -> list[Stored]:
        """Those of some points that are there."""
        payload = True if fields is None else list(fields)
        names: list[Any] = [id_.hex() for id_ in ids]
        with engine_errors(folder_of(self._target)):
            found = [point for shard in self._shards for point in shard.retrieve(names, payload, vectors)]
        return [self._stored(point) for point in found]

    def _stored(self, point: Any) -> Stored:
        id_ = point.id.bytes if isinstance(point.id, UUID) else None
        vector, name = point.vector, self._target.vector_name
        if vector is not None:
            vector = np.asarray(vector if name is None else vector[name], np.float32)
        return Stored(id_, point.payload or {}, vector)

    def index_state(self) -> IndexState:
        """There is nothing to tell: a run builds the index at its end."""
        return IndexState("none", "the embedded engine builds it at the end of a run, where one pays")

    def close(self) -> None:
        """Let go of the collection."""
        while self._shards:
            self._shards.pop().close()


def _word(value: str | int) -> str | int:
    """A truth value as text: the engine takes it for a number, and compares no truth values."""
    return str(value).lower() if isinstance(value, bool) else value
