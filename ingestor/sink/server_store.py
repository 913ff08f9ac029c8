"""Making, checking and dropping a collection of a Qdrant server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from pydantic import TypeAdapter, ValidationError
from qdrant_client import grpc as qdrant
from qdrant_client import models
from qdrant_client.conversions.conversion import RestToGrpc, payload_to_grpc

from ingestor.errors import ConfigError
from ingestor.sink import RefusedError, Target
from ingestor.sink.collection import Existing
from ingestor.sink.connection import Connection, metadata_of
from ingestor.sink.drift import Settings
from ingestor.sink.server_errors import AlreadyThereError
from ingestor.sink.server_settings import indexes_of, info_of, settings_of


class ServerStore:
    """A collection's place on a server; see `collection.Store`."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._connection = Connection(target)
        self._version = ""

    def __enter__(self) -> Self:
        try:
            self._version = self._connection.greet()
        except BaseException:
            self._connection.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def about(self) -> str:
        """The server and its version."""
        return f"Qdrant {self._version} at {self._target.url}"

    def read(self) -> Existing | None:
        """What is there."""
        info = info_of(self._connection)
        if info is None:
            return None
        config = info.config.params.vectors_config
        named: Mapping[Any, Any] = config.params_map.map
        vectors: dict[str | None, Any] = dict(named)
        if config.HasField("params"):
            vectors[None] = config.params
        return Existing(
            {key: (int(one.size), qdrant.Distance.Name(one.distance)) for key, one in vectors.items()},
            metadata_of(info),
            self._connection.count(),
            indexes_of(info),
            settings_of(info, self._target.vector_name),
        )

    def identity(self) -> dict[str, Any] | None:
        """What the collection was written with."""
        info = info_of(self._connection)
        return None if info is None else metadata_of(info)

    def settings(self) -> Settings:
        """What the server says of it."""
        info = info_of(self._connection)
        return {} if info is None else settings_of(info, self._target.vector_name)

    def create(self, identity: Mapping[str, Any]) -> None:
        """Make the collection, its identity in its metadata."""
        target = self._target
        for field, kind in target.indexes.items():
            _field_type(field, kind)  # refuses what there is not, before anything is made
        request = qdrant.CreateCollection(
            collection_name=target.collection,
            vectors_config=_vectors_config(target),
            shard_number=target.shard_number,
            replication_factor=target.replication_factor,
            write_consistency_factor=target.write_consistency_factor,
            metadata=payload_to_grpc({"ingestor": dict(identity)}),
        )
        if target.hnsw:
            hnsw = _checked(models.HnswConfigDiff, target.hnsw, "qdrant.hnsw")
            request.hnsw_config.CopyFrom(RestToGrpc.convert_hnsw_config_diff(hnsw))
        if target.quantization:
            kind = _checked(models.QuantizationConfig, target.quantization, "qdrant.quantization")
            request.quantization_config.CopyFrom(RestToGrpc.convert_quantization_config(kind))
        try:
            self._change(self._connection.collections.Create, request)
        except AlreadyThereError:
            found = self.read()
            if found is None or found.identity != identity:
                raise

    def drop(self) -> None:
        """Remove the collection."""
        request = qdrant.DeleteCollection(collection_name=self._target.collection)
        self._change(self._connection.collections.Delete, request)

    def write_identity(self, identity: Mapping[str, Any]) -> None:
        """Replace the identity in the collection's metadata."""
        metadata = payload_to_grpc({"ingestor": dict(identity)})
        request = qdrant.UpdateCollection(collection_name=self._target.collection, metadata=metadata)
        self._change(self._connection.collections.Update, request)

    def create_index(self, field: str, kind: str) -> None:
        """Index a payload field; waits until it is done."""
        request = qdrant.CreateFieldIndexCollection(
            collection_name=self._target.collection,
            wait=True,
            field_name=field,
            field_type=_field_type(field, kind),
        )
        self._change(self._connection.points.CreateFieldIndex, request)

    def _change(self, method: Any, request: Any) -> None:
        """Ask for a change; what the server refuses is wrong in the configuration."""
        try:
            self._connection.ask(method, request)
        except RefusedError as error:
            raise ConfigError(f"{self._target}: the server refuses it: {error.detail}") from error


def _vectors_config(target: Target) -> qdrant.VectorsConfig:
    params = qdrant.VectorParams(
        size=target.dimension, distance=qdrant.Distance.Value(target.distance), on_disk=target.on_disk
    )
    if target.datatype:
        try:
            params.datatype = qdrant.Datatype.Value(target.datatype.capitalize())
        except ValueError as error:
            raise ConfigError(f"qdrant.datatype: {target.datatype!r} is not known") from error
    if target.vector_name is None:
        return qdrant.VectorsConfig(params=params)
    return qdrant.VectorsConfig(params_map=qdrant.VectorParamsMap(map={target.vector_name: params}))


def _checked(kind: Any, settings: Mapping[str, Any], setting: str) -> Any:
    """Settings that are passed on, as the client's own model.

    Raises:
        ConfigError: they do not fit it.
    """
    try:
        return TypeAdapter(kind).validate_python(dict(settings))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join([setting, *map(str, first["loc"])])
        raise ConfigError(f"{where}: {first['msg']}") from error


def _field_type(field: str, kind: str) -> Any:
    """The server's name for a kind of payload index.

    Raises:
        ConfigError: it has none.
    """
    kinds = {name.removeprefix("FieldType").lower(): value for name, value in qdrant.FieldType.items()}
    if kind not in kinds:
        raise ConfigError(f"qdrant.payload_indexes.{field}: {kind!r} is none of {', '.join(sorted(kinds))}")
    return kinds[kind]
