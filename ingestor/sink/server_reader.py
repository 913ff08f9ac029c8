"""Reading a collection of a Qdrant server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from uuid import UUID

import numpy as np
from qdrant_client import grpc as qdrant
from qdrant_client.conversions.conversion import GrpcToRest

from ingestor.errors import NothingThereError, SinkError
from ingestor.records import Float32s
from ingestor.sink import Hit, IndexState, RefusedError, Stored, Target
from ingestor.sink.connection import Connection, metadata_of

PAGE, BARE_PAGE = 256, 1024  # points read at once, with and without their vectors
QUERIES_PER_REQUEST = 32
ALL = qdrant.WithPayloadSelector(enable=True)


class ServerReader:
    """Reads a collection over its own connection."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._connection = Connection(target)
        try:
            self._connection.greet()
            stub = self._connection.collections
            name = qdrant.CollectionExistsRequest(collection_name=target.collection)
            if not self._connection.ask(stub.CollectionExists, name).result.exists:
                raise NothingThereError(f"{target}: there is none yet; a run makes it")
        except BaseException:
            self._connection.close()
            raise

    def search(
        self,
        vectors: Float32s,
        k: int,
        *,
        exact: bool = False,
        filter: Mapping[str, str | int] | None = None,  # noqa: A002
    ) -> list[list[Hit]]:
        """The k nearest chunks of each of float32[n, dimension], best first."""
        where = qdrant.Filter(must=[_equal(key, value) for key, value in (filter or {}).items()])
        queries = [self._query(vector, k, exact, where) for vector in vectors]
        hits: list[list[Hit]] = []
        for start in range(0, len(queries), QUERIES_PER_REQUEST):
            part = queries[start : start + QUERIES_PER_REQUEST]
            request = qdrant.QueryBatchPoints(collection_name=self._target.collection, query_points=part)
            answers = self._ask(self._connection.points.QueryBatch, request).result
            hits += [[Hit.of(point.score, _payload(point)) for point in one.result] for one in answers]
        return hits

    def _query(self, vector: Any, k: int, exact: bool, where: qdrant.Filter) -> qdrant.QueryPoints:
        dense = qdrant.DenseVector(data=vector.tolist())
        return qdrant.QueryPoints(
            collection_name=self._target.collection,
            query=qdrant.Query(nearest=qdrant.VectorInput(dense=dense)),
            using=self._target.vector_name,
            limit=k,
            filter=where,
            params=qdrant.SearchParams(exact=exact),
            with_payload=ALL,
        )

    def count(self) -> int:
        """Points in the collection."""
        return self._connection.count()

    def identity(self) -> dict[str, Any] | None:
        """What the collection was written with."""
        return metadata_of(self._info())

    def _info(self) -> qdrant.CollectionInfo:
        request = qdrant.GetCollectionInfoRequest(collection_name=self._target.collection)
        info: qdrant.CollectionInfo = self._ask(self._connection.collections.Get, request).result
        return info

    def scan(self, fields: Sequence[str] | None = None, *, vectors: bool = False) -> Iterator[list[Stored]]:
        """Every point, a page at a time."""
        request = qdrant.ScrollPoints(
            collection_name=self._target.collection,
            limit=PAGE if vectors else BARE_PAGE,
            with_payload=_selected(fields),
            with_vectors=qdrant.WithVectorsSelector(enable=vectors),
        )
        while True:
            page = self._ask(self._connection.points.Scroll, request)
            yield [self._stored(point) for point in page.result]
            if not page.HasField("next_page_offset"):
                return
            request.offset.CopyFrom(page.next_page_offset)

    def retrieve(
        self, ids: Sequence[bytes], fields: Sequence[str] | None = None, *, vectors: bool = False
    ) -> list[Stored]:
        """Those of some points that are there."""
        request = qdrant.GetPoints(
            collection_name=self._target.collection,
            ids=[qdrant.PointId(uuid=str(UUID(bytes=id_))) for id_ in ids],
            with_payload=_selected(fields),
            with_vectors=qdrant.WithVectorsSelector(enable=vectors),
        )
        return [self._stored(point) for point in self._ask(self._connection.points.Get, request).result]

    def index_state(self) -> IndexState:
        """What the server says of its optimizer."""
        info = self._info()
        name = qdrant.CollectionStatus.Name(info.status).lower()
        if info.optimizer_status.error:
            return IndexState(name, info.optimizer_status.error)
        return IndexState(
            name, f"{info.indexed_vectors_count:,} of about {info.points_count:,} vectors indexed"
        )

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _stored(self, point: Any) -> Stored:
        id_ = UUID(point.id.uuid).bytes if point.id.uuid else None
        vectors, name = point.vectors, self._target.vector_name
        if not vectors.WhichOneof("vectors_options"):
            return Stored(id_, _payload(point))
        vector = vectors.vector if name is None else vectors.vectors.vectors[name]
        values = vector.dense.data or vector.data  # `data`: servers before 1.17
        return Stored(id_, _payload(point), np.asarray(values, np.float32))

    def _ask(self, method: Any, request: Any) -> Any:
        """Ask; what the server refuses is wrong in the question."""
        try:
            return self._connection.ask(method, request)
        except RefusedError as error:
            raise SinkError(f"{self._target}: {error.detail}") from error


def _selected(fields: Sequence[str] | None) -> qdrant.WithPayloadSelector:
    if fields is None:
        return ALL
    return qdrant.WithPayloadSelector(include=qdrant.PayloadIncludeSelector(fields=fields))


def _payload(point: Any) -> dict[str, Any]:
    payload: dict[str, Any] = GrpcToRest.convert_payload(point.payload)
    return payload


def _equal(key: str, value: str | int) -> qdrant.Condition:
    if isinstance(value, bool):
        match = qdrant.Match(boolean=value)
    else:
        match = qdrant.Match(keyword=value) if isinstance(value, str) else qdrant.Match(integer=value)
    return qdrant.Condition(field=qdrant.FieldCondition(key=key, match=match))
