"""The sink over the embedded engine; a directory is open in one process only."""

from __future__ import annotations

from typing import Any

import orjson
import qdrant_edge as edge

from ingestor.records import Float32s, Points, UInt8s
from ingestor.sink import Refusal, RefusedError, Target, requests
from ingestor.sink.bisect import write_or_bisect
from ingestor.sink.engine import engine_errors, load_shard, release_pages
from ingestor.sink.folder import folder_of

FATAL = ("Service runtime error", "os error", "WAL", "not initialized")  # else the engine blames a point


class EmbeddedSink:
    """Writes to one directory of a collection."""

    def __init__(self, target: Target, directory: int) -> None:
        self._name = target.vector_name
        self._place = folder_of(target) / str(directory)
        self._shard = load_shard(self._place)

    def upsert(self, vectors: Float32s, points: Points) -> list[Refusal]:
        """Write points; they outlive this process at once, and a power failure after `flush`."""
        refused = []
        for start, stop in requests(points, 4 * vectors.shape[1]):
            refused += write_or_bisect(
                lambda a, b: self._write(vectors, points, a, b), start, stop, name=str(self._place)
            )
        return refused

    def delete(self, ids: UInt8s) -> None:
        """Delete the points with these ids, uint8[n, 16]."""
        with engine_errors(self._place):
            self._shard.update(edge.UpdateOperation.delete_points(list(_hex(ids))))

    def flush(self) -> None:
        """Bring to disk what was written."""
        with engine_errors(self._place):
            self._shard.flush()
        release_pages(self._place)

    def optimize(self) -> None:
        """Build the search index of segments that are large enough for one; seconds."""
        with engine_errors(self._place):
            self._shard.optimize()

    def count(self) -> int:
        """Points in this directory."""
        with engine_errors(self._place):
            return int(self._shard.count(edge.CountRequest(exact=True)))

    def close(self) -> None:
        """Flush, and let go of the directory."""
        with engine_errors(self._place):
            self._shard.close()

    def _write(self, vectors: Float32s, points: Points, start: int, stop: int) -> None:
        name = self._name
        rows: list[Any] = [vector.data for vector in vectors[start:stop]]  # faster than arrays or lists
        columns = zip(_hex(points.ids[start:stop]), rows, points.payloads[start:stop], strict=True)
        with engine_errors(self._place):
            try:
                batch = [
                    edge.Point(point, row if name is None else {name: row}, orjson.loads(payload))
                    for point, row, payload in columns
                ]
                self._shard.update(edge.UpdateOperation.upsert_points(batch))
            except Exception as error:
                if any(word in str(error) for word in FATAL):
                    raise
                raise RefusedError("refused", str(error)) from error


def _hex(ids: UInt8s) -> list[str]:
    """Point ids as the engine reads them."""
    digits = ids.tobytes().hex()
    return [digits[at : at + 32] for at in range(0, len(digits), 32)]
