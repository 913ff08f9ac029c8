"""Making, checking and dropping a collection of the embedded engine."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any, Self

import qdrant_edge as edge

from ingestor.sink import Target
from ingestor.sink.collection import Existing
from ingestor.sink.drift import Settings, asked_for, flat
from ingestor.sink.engine import HNSW, config_of, create_shard, engine_errors, index_kind, kind_of, load_shard
from ingestor.sink.folder import folder_of, read_manifest, rename, write_manifest


class EmbeddedStore:
    """The folder of one collection, its directories held open; see `collection.Store`."""

    def __init__(self, target: Target, directories: int) -> None:
        self._target = target
        self._directories = directories
        self._folder = folder_of(target)
        self._manifest: dict[str, Any] | None = None
        self._shards: list[edge.EdgeShard] = []

    def __enter__(self) -> Self:
        self._manifest = read_manifest(self._folder)
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def about(self) -> str:
        """The engine and its version."""
        return f"embedded engine, qdrant-edge {version('qdrant-edge-py')}"

    def read(self) -> Existing | None:
        """What is there."""
        if self._manifest is None:
            return None
        self._open()
        vector = self._manifest["vector"]
        schemas = [shard.info().payload_schema for shard in self._shards]
        everywhere = set.intersection(*map(set, schemas))
        return Existing(
            {vector["name"]: (vector["dimension"], vector["distance"])},
            self._manifest["identity"],
            sum(shard.count(edge.CountRequest(exact=True)) for shard in self._shards),
            {field: kind_of(schemas[0][field]) for field in everywhere},
            self.settings(),
        )

    def identity(self) -> dict[str, Any] | None:
        """What the collection was written with; opens no directory."""
        return self._manifest and self._manifest["identity"]

    def settings(self) -> Settings:
        """What it was made with; what an earlier version made is taken to be as asked for."""
        found: Settings = (self._manifest or {}).get("settings", asked_for(self._target))
        return found

    def create(self, identity: Mapping[str, Any]) -> None:
        """Make the collection beside its place and move it there whole, so that a kill leaves none or all."""
        target, new = self._target, self._folder.with_name(f".{self._folder.name}.new")
        vector = {"name": target.vector_name, "dimension": target.dimension, "distance": target.distance}
        self._manifest = {
            "format": 1,
            "directories": self._directories,
            "vector": vector,
            "identity": dict(identity),
            "settings": flat("hnsw", HNSW) | asked_for(target),
        }
        for field, kind in target.indexes.items():
            index_kind(field, kind)  # refuses what there is not, before anything is made
        config = config_of(target)
        self._sweep()
        with engine_errors(self._folder):
            new.mkdir(parents=True)
            for directory in range(self._directories):
                create_shard(new / str(directory), config).close()
            write_manifest(new, self._manifest)
            rename(new, self._folder)
        self._open()

    def drop(self) -> None:
        """Remove the collection, unless another process has it open."""
        self._open()
        self._close()
        self._sweep()
        old = self._folder.with_name(f".{self._folder.name}.old")
        with engine_errors(self._folder):
            rename(self._folder, old)
            shutil.rmtree(old)
        self._manifest = None

    def write_identity(self, identity: Mapping[str, Any]) -> None:
        """Replace the identity in the manifest."""
        self._manifest = {**(self._manifest or {}), "identity": dict(identity)}
        with engine_errors(self._folder):
            write_manifest(self._folder, self._manifest)

    def create_index(self, field: str, kind: str) -> None:
        """Index a payload field in each directory."""
        kind_of_engine = index_kind(field, kind)
        with engine_errors(self._folder):
            for shard in self._shards:
                shard.update(edge.UpdateOperation.create_field_index(field, kind_of_engine))

    def _open(self) -> None:
        if not self._shards and self._manifest is not None:
            for directory in range(self._manifest["directories"]):
                self._shards.append(load_shard(self._folder / str(directory)))

    def _close(self) -> None:
        while self._shards:
            self._shards.pop().close()

    def _sweep(self) -> None:
        """Remove what a killed run left of making or dropping the collection."""
        for suffix in ("new", "old"):
            shutil.rmtree(self._folder.with_name(f".{self._folder.name}.{suffix}"), ignore_errors=True)
