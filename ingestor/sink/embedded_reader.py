"""Reading a collection of the embedded engine, in a process that has it to itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from heapq import nlargest, nsmallest
from operator import attrgetter
from typing import Any

import numpy as np
import qdrant_edge as edge

from ingestor.errors import SinkError
from ingestor.sink import Float32s, Hit, Target
from ingestor.sink.engine import load_shard, told
from ingestor.sink.folder import folder_of, read_manifest

PAGE = 256  # points read at once


class EmbeddedReader:
    """Reads a collection in this process; nothing else can have it open meanwhile."""

    def __init__(self, target: Target) -> None:
        self._target = target
        manifest = read_manifest(folder_of(target))
        if manifest is None:
            raise SinkError(f"{target}: there is none yet; a run makes it")
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
            edge.FieldCondition(key=key, match=edge.MatchValue(value=value))
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
        with told(folder_of(self._target)):
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

    def points(self) -> Iterator[tuple[bytes, Float32s, dict[str, Any]]]:
        """Every point: id, vector, payload."""
        name = self._target.vector_name
        for shard in self._shards:
            offset = None
            while True:
                request = edge.ScrollRequest(limit=PAGE, offset=offset, with_vector=True, with_payload=True)
                page, offset = shard.scroll(request)
                point: Any  # whose vector may have many forms
                for point in page:
                    vector = point.vector if name is None else point.vector[name]
                    yield point.id.bytes, np.asarray(vector, np.float32), point.payload
                if offset is None:
                    break

    def close(self) -> None:
        """Let go of the collection."""
        while self._shards:
            self._shards.pop().close()
