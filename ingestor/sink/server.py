"""The sink over a Qdrant server."""

from __future__ import annotations

from collections import deque
from typing import Any
from uuid import UUID

import grpc
from qdrant_client import grpc as qdrant

from ingestor import framing
from ingestor.errors import TransientSinkError
from ingestor.records import Points, UInt8s
from ingestor.sink import Float32s, Refusal, Target, requests
from ingestor.sink.collection import write_or_bisect
from ingestor.sink.connection import Connection, error_of, persist

IN_FLIGHT = 4  # requests; the server writes one while the next travels
PATIENCE_S = 120.0  # for how long a write is tried again: a server may be restarted meanwhile
UPSERT = "/qdrant.Points/Upsert"


class ServerSink:
    """Writes points in several requests at a time, each a message framed by hand."""

    def __init__(self, target: Target, *, patience_s: float = PATIENCE_S) -> None:
        self._connection = Connection(target)
        self.target = target
        self._patience_s = patience_s
        self._send: Any = self._connection.channel.unary_unary(
            UPSERT, request_serializer=None, response_deserializer=qdrant.PointsOperationResponse.FromString
        )

    def upsert(self, vectors: Float32s, points: Points) -> list[Refusal]:
        """Write points, durably: a request counts when the server says that it is completed."""
        refused: list[Refusal] = []
        sent: deque[tuple[int, int, Any]] = deque()
        for start, stop in requests(points, 4 * vectors.shape[1]):
            if len(sent) == IN_FLIGHT:
                refused += self._settle(vectors, points, *sent.popleft())
            sent.append((start, stop, self._start(vectors, points, start, stop)))
        while sent:
            refused += self._settle(vectors, points, *sent.popleft())
        return refused

    def delete(self, ids: UInt8s) -> None:
        """Delete the points with these ids, uint8[n, 16]."""
        chosen = qdrant.PointsIdsList(
            ids=[qdrant.PointId(uuid=str(UUID(bytes=row.tobytes()))) for row in ids]
        )
        request = qdrant.DeletePoints(
            collection_name=self.target.collection, wait=True, points=qdrant.PointsSelector(points=chosen)
        )
        delete = self._connection.points.Delete
        persist(lambda: self._check(self._connection.once(delete, request)), patience_s=self._patience_s)

    def flush(self) -> None:
        """Nothing is left to do: what is completed is durable."""

    def optimize(self) -> None:
        """Nothing to do: a server does so by itself."""

    def count(self) -> int:
        """Points in the collection."""
        return self._connection.count()

    def close(self) -> None:
        """Close the channel."""
        self._connection.close()

    def _start(self, vectors: Float32s, points: Points, start: int, stop: int) -> Any:
        """Send points [start, stop); the answer is a future."""
        target, part = self.target, points.slice(start, stop)
        message = framing.upsert_points(
            target.collection, part.ids, part.payloads, vectors[start:stop], vector_name=target.vector_name
        )
        return self._send.future(message, timeout=target.timeout_s, metadata=self._connection.metadata)

    def _settle(self, vectors: Float32s, points: Points, start: int, stop: int, call: Any) -> list[Refusal]:
        """Wait for a request; send it again, or in parts, where that may help."""
        first = [call]

        def attempt(start: int, stop: int) -> None:
            call = first.pop() if first else self._start(vectors, points, start, stop)
            try:
                answer = call.result()
            except grpc.RpcError as error:
                raise error_of(error, self.target) from error
            self._check(answer)

        def write(start: int, stop: int) -> None:
            persist(lambda: attempt(start, stop), patience_s=self._patience_s)

        return write_or_bisect(write, start, stop)

    def _check(self, answer: Any) -> None:
        status = answer.result.status
        if status != qdrant.UpdateStatus.Completed:
            name = qdrant.UpdateStatus.Name(status)
            raise TransientSinkError(f"{self.target}: the server has not finished a write ({name})")
