"""Queries of an alias, by the client that others use, while something else goes on."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from qdrant_client import QdrantClient, models

from ingestor.sink import Target

HITS = 5


def connect(target: Target) -> QdrantClient:
    parts = urlsplit(target.url or "")
    return QdrantClient(
        host=parts.hostname,
        grpc_port=target.grpc_port,
        https=parts.scheme == "https",
        api_key=target.api_key,
        prefer_grpc=True,
        check_compatibility=False,
        timeout=20,
    )


class Reader(threading.Thread):
    """Queries an alias again and again; counts what it got, by which fields the points have."""

    def __init__(self, target: Target, alias: str) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()
        self.failed: list[str] = []
        self.ended = threading.Event()
        self._target = target
        self._alias = alias

    def run(self) -> None:
        client = connect(self._target)
        asked = models.QueryRequest(query=[1.0] * self._target.dimension, limit=HITS, with_payload=True)
        while not self.ended.is_set():
            try:
                points = client.query_batch_points(self._alias, [asked])[0].points
            except Exception as error:  # what a caller would see
                self.failed.append(str(error))
            else:
                kinds = {"with kind" if "kind" in (point.payload or {}) else "without" for point in points}
                self.found[" and ".join(sorted(kinds)) if len(points) == HITS else "too few"] += 1
        client.close()


@contextmanager
def queried(target: Target, alias: str, readers: int = 2) -> Iterator[tuple[Counter[str], list[str]]]:
    """Query an alias while the block runs; what was found and what failed is there after it."""
    found, failed, running = Counter[str](), list[str](), [Reader(target, alias) for _ in range(readers)]
    for reader in running:
        reader.start()
    try:
        yield found, failed
    finally:
        for reader in running:
            reader.ended.set()
            reader.join(30)
            found.update(reader.found)
            failed.extend(reader.failed)
