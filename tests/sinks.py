"""Points, targets and pools for the tests of the sinks."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ingestor.buffers import BufferPool
from ingestor.framing import json_payload, protobuf_payload
from ingestor.records import Float32s, Points, UpsertRequest
from ingestor.sink import Target, framing_of, open_reader
from ingestor.sink.pool import SinkPool
from ingestor.sink.worker import ensure_collection
from tests.servers import QdrantServer

DIMENSION = 8
IDENTITY: dict[str, Any] = {"vector": {"model": "hash:8"}, "record": {"fields": ["text"]}, "state": "state-1"}
NAMESPACE = uuid.UUID(int=7)


def embedded(path: Path, **changes: Any) -> Target:
    target = Target(
        url=None,
        path=str(path),
        grpc_port=6334,
        api_key=None,
        ca_file=None,
        timeout_s=20.0,
        collection="things",
        vector_name=None,
        distance="Cosine",
        dimension=DIMENSION,
    )
    return replace(target, **changes)


def served(server: QdrantServer, **changes: Any) -> Target:
    """The same collection on a test server."""
    target = replace(embedded(Path()), url=server.url, path=None, grpc_port=server.port)
    return replace(target, **changes)


def payload_of(number: int) -> dict[str, Any]:
    """A payload with a value of each kind."""
    return {
        "document": f"d{number}",
        "chunk": number % 3,
        "chunks": 3,
        "text": f"Text über {number}",
        "hash": f"{number:032x}",
        "score": number / 4,
        "big": 2**63 - 1 - number,
        "tags": ["a", None, {"deep": [True, -number]}],
    }


def ids_of(count: int) -> np.ndarray:
    ids = b"".join(uuid.uuid5(NAMESPACE, str(number)).bytes for number in range(count))
    return np.frombuffer(ids, np.uint8).reshape(count, 16)


def points_of(target: Target, count: int, payloads: list[dict[str, Any]] | None = None) -> Points:
    frame = json_payload if framing_of(target) == "json" else protobuf_payload
    payloads = payloads or [payload_of(number) for number in range(count)]
    return Points(np.arange(count), ids_of(count), [frame(payload) for payload in payloads])


def vectors_of(count: int, dimension: int = DIMENSION) -> Float32s:
    vectors = np.random.default_rng(count).normal(size=(count, dimension)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def refused(*rows: int) -> np.ndarray:
    return np.array(rows, np.int32)


def make(target: Target, *, identity: dict[str, Any] = IDENTITY, directories: int = 1, **how: bool) -> None:
    """Make or check a collection in this process, as a sink process does it."""
    ensure_collection(target, directories, identity, how.get("recreate", False), how.get("adopt", False))


@asynccontextmanager
async def sink_pool(
    target: Target, *, identity: dict[str, Any] | None = None, processes: int = 1, **how: Any
) -> AsyncIterator[SinkPool]:
    """A pool without buffers, closed at the end."""
    identity = identity or IDENTITY
    pool = await SinkPool.open(target, identity=identity, processes=processes, **how)
    try:
        yield pool
    finally:
        await pool.close()


async def write(
    target: Target, points: Points, vectors: Float32s, *, processes: int = 1
) -> tuple[tuple[int, str, str], ...]:
    """Write points through a pool, one slot of them, and say which were refused."""
    buffers = BufferPool.create(str(target), slots=2, rows=len(vectors), dimension=vectors.shape[1])
    try:
        pool = await SinkPool.open(target, identity=IDENTITY, processes=processes)
        try:
            await pool.attach(buffers.layout)
            slot = await buffers.acquire()
            slot.vectors[: len(vectors)] = vectors
            applied = await pool.upsert(UpsertRequest(slot.index, points, refused()))
            assert applied.documents.tolist() == points.documents.tolist()
            await pool.flush()
        finally:
            await pool.close()
    finally:
        buffers.close()
    return applied.failures


def stored(target: Target) -> dict[bytes, tuple[Float32s, dict[str, Any]]]:
    """All that a collection holds, by id."""
    reader = open_reader(target)
    try:
        points = [point for page in reader.scan(vectors=True) for point in page]
        found = {
            point.id: (point.vector, point.payload)
            for point in points
            if point.id is not None and point.vector is not None
        }
        assert len(found) == reader.count()
        return found
    finally:
        reader.close()
