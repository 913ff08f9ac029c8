"""The sink over a Qdrant server."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import grpc
from qdrant_client import grpc as qdrant

from ingestor import framing
from ingestor.errors import SinkError, TransientSinkError
from ingestor.records import Float32s, Points, UInt8s
from ingestor.sink import REQUEST_BYTES, TOO_LARGE, Refusal, RefusedError, Target, requests
from ingestor.sink.bisect import write_or_bisect
from ingestor.sink.connection import Connection
from ingestor.sink.in_flight import InFlight
from ingestor.sink.patience import Patience, Wait, persist, silent
from ingestor.sink.server_errors import error_of

UPSERT = "/qdrant.Points/Upsert"


@dataclass(slots=True)
class Sent:
    """A request under way: points [start, stop), its bytes, when it was sent, and when it was answered."""

    start: int
    stop: int
    nbytes: int
    under_way: int
    at: float
    call: Any = None
    answered_at: float | None = None

    def note(self, _: object) -> None:
        """Take the time; gRPC calls it, in a thread of its own."""
        self.answered_at = time.perf_counter()


class ServerSink:
    """Writes points in several requests at a time, each a message framed by hand.

    Args:
        target: an existing collection.
        patience: with requests that fail.
        tell: hears what is waited for; see `persist`.
    """

    def __init__(
        self,
        target: Target,
        *,
        patience: Patience = Patience(),  # noqa: B008 - a value
        tell: Callable[[Wait | None], None] = silent,
    ) -> None:
        self._connection = Connection(target)
        self.target = target
        self.in_flight = InFlight()
        self._most_bytes = REQUEST_BYTES
        self._patience = patience
        self._tell = tell
        self._send: Any = self._connection.channel.unary_unary(
            UPSERT, request_serializer=None, response_deserializer=qdrant.PointsOperationResponse.FromString
        )

    def upsert(self, vectors: Float32s, points: Points) -> list[Refusal]:
        """Write points, durably: a request counts when the server says that it is completed."""
        refused: list[Refusal] = []
        sent: deque[Sent] = deque()
        for start, stop in requests(points, 4 * vectors.shape[1], self._most_bytes):
            while len(sent) >= self.in_flight.limit:
                refused += self._settle(vectors, points, sent.popleft())
            under_way = 1 + sum(one.answered_at is None for one in sent)
            sent.append(self._start(vectors, points, start, stop, under_way))
        while sent:
            refused += self._settle(vectors, points, sent.popleft())
        return refused

    def delete(self, ids: UInt8s) -> None:
        """Delete the points with these ids, uint8[n, 16]; in parts, where they are too many for a rate limit.

        Raises:
            SinkError: the server refuses it.
        """
        try:
            self._persist(lambda: self._delete(ids))
        except RefusedError as error:
            if error.kind != TOO_LARGE or len(ids) == 1:
                raise SinkError(f"{self.target}: the server refuses to delete points: {error}") from error
            middle = len(ids) // 2
            self.delete(ids[:middle])
            self.delete(ids[middle:])

    def _delete(self, ids: UInt8s) -> None:
        chosen = qdrant.PointsIdsList(
            ids=[qdrant.PointId(uuid=str(UUID(bytes=row.tobytes()))) for row in ids]
        )
        request = qdrant.DeletePoints(
            collection_name=self.target.collection, wait=True, points=qdrant.PointsSelector(points=chosen)
        )
        self._check(self._connection.once(self._connection.points.Delete, request))

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

    def _persist(self, call: Callable[[], None]) -> None:
        persist(call, patience=self._patience, tell=self._tell)

    def _start(self, vectors: Float32s, points: Points, start: int, stop: int, under_way: int) -> Sent:
        """Send points [start, stop)."""
        target, part = self.target, points.slice(start, stop)
        message = framing.upsert_points(
            target.collection, part.ids, part.payloads, vectors[start:stop], vector_name=target.vector_name
        )
        sent = Sent(start, stop, len(message), under_way, time.perf_counter())
        sent.call = self._send.future(message, timeout=target.timeout_s, metadata=self._connection.metadata)
        sent.call.add_done_callback(sent.note)
        return sent

    def _settle(self, vectors: Float32s, points: Points, sent: Sent) -> list[Refusal]:
        """Wait for a request; send it again, or in parts, where that may help."""
        first = [sent]

        def attempt(start: int, stop: int) -> None:
            self._finish(first.pop() if first else self._start(vectors, points, start, stop, 1))

        def write(start: int, stop: int) -> None:
            self._persist(lambda: attempt(start, stop))

        return write_or_bisect(write, sent.start, sent.stop, name=str(self.target))

    def _finish(self, sent: Sent) -> None:
        """Wait for an answer, and learn from it how many requests the server bears."""
        try:
            answer = sent.call.result()
        except grpc.RpcError as error:
            age_s = time.perf_counter() - (sent.answered_at or time.perf_counter())
            found = error_of(error, self.target, age_s=age_s)
            if isinstance(found, TransientSinkError):
                self.in_flight.shrink()
            elif isinstance(found, RefusedError) and found.kind == TOO_LARGE and sent.stop > sent.start + 1:
                self._most_bytes = min(self._most_bytes, sent.nbytes // 2)
            raise found from error
        seconds = (sent.answered_at or time.perf_counter()) - sent.at
        self.in_flight.answered(seconds, sent.nbytes, sent.under_way)
        self._check(answer)

    def _check(self, answer: Any) -> None:
        status = answer.result.status
        if status != qdrant.UpdateStatus.Completed:
            name = qdrant.UpdateStatus.Name(status)
            raise TransientSinkError(f"{self.target}: the server has not finished a write ({name})")
