"""The search index of a server's collection: put off, put back, and watched while it is built."""

from __future__ import annotations

from typing import Any, Self

from qdrant_client import grpc as qdrant

from ingestor.errors import NothingThereError, SinkError
from ingestor.sink import RefusedError, Target
from ingestor.sink.connection import Connection
from ingestor.sink.index_watch import Condition
from ingestor.sink.server_settings import info_of


class ServerIndex:
    """The index of one collection, over a connection of its own."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._connection = Connection(target)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def links(self) -> int | None:
        """`m` of the collection, whose default the server has filled in; None where there is none, or where
        the vector has an `m` of its own.
        """
        info = info_of(self._connection)
        if info is None:
            return None
        config, name = info.config.params.vectors_config, self._target.vector_name
        vector = config.params if name is None else config.params_map.map[name]
        return None if vector.hnsw_config.HasField("m") else int(info.config.hnsw_config.m)

    def set_links(self, m: int) -> None:
        """Change `m`; the server stops what it is building, and builds what this asks for."""
        self._update(hnsw_config=qdrant.HnswConfigDiff(m=m))

    def count(self) -> int:
        """Points in the collection, exactly."""
        return self._connection.count()

    def condition(self) -> Condition:
        """How far the index is.

        Raises:
            NothingThereError: the collection is gone.
            SinkError: the server cannot be asked.
        """
        info = info_of(self._connection)
        if info is None:
            raise NothingThereError(f"{self._target}: it was dropped meanwhile")
        color = qdrant.CollectionStatus.Name(info.status).lower()
        counts = info.update_queue.length, info.points_count, info.indexed_vectors_count
        return Condition(color, info.optimizer_status.error, *map(int, counts))

    def wake(self) -> None:
        """Have the server go on with what it left when it was restarted, or when it failed."""
        self._update(optimizers_config=qdrant.OptimizersConfigDiff())

    def _update(self, **what: Any) -> None:
        request = qdrant.UpdateCollection(collection_name=self._target.collection, **what)
        try:
            self._connection.ask(self._connection.collections.Update, request)
        except RefusedError as error:
            raise SinkError(f"{self._target}: the server refuses it: {error.detail}") from error
