"""A server's settings of a collection by the names that they have in our configuration."""

from __future__ import annotations

from typing import Any

from qdrant_client import grpc as qdrant

from ingestor.sink.connection import Connection
from ingestor.sink.drift import flat

COLD, PINNED = "cold", "pinned"


def info_of(connection: Connection) -> qdrant.CollectionInfo | None:
    """What the server says of the collection; None where there is none."""
    name, stub = connection.target.collection, connection.collections
    exists = connection.ask(stub.CollectionExists, qdrant.CollectionExistsRequest(collection_name=name))
    if not exists.result.exists:
        return None
    request = qdrant.GetCollectionInfoRequest(collection_name=name)
    found: qdrant.CollectionInfo = connection.ask(stub.Get, request).result
    return found


def indexes_of(info: qdrant.CollectionInfo) -> dict[str, str]:
    """Payload fields that have an index, and its kind."""
    return {
        field: qdrant.PayloadSchemaType.Name(one.data_type).lower()
        for field, one in info.payload_schema.items()
    }


def settings_of(info: qdrant.CollectionInfo, vector_name: str | None) -> dict[str, Any]:
    """All that `drift` may compare; a vector's own settings go before the collection's."""
    config = info.config
    params: Any = config.params.vectors_config
    vector = params.params if vector_name is None else params.params_map.map[vector_name]
    found: dict[str, Any] = {
        "on_disk": _set(vector, "on_disk"),
        "datatype": qdrant.Datatype.Name(vector.datatype).lower(),
        "shard_number": config.params.shard_number,
        "replication_factor": _set(config.params, "replication_factor"),
        "write_consistency_factor": _set(config.params, "write_consistency_factor"),
    }
    if found["datatype"] == "default":
        found["datatype"] = "float32"
    if found["on_disk"] is None and vector.HasField("memory"):
        found["on_disk"] = _word(vector, "memory") == COLD
    graph = _fields(config.hnsw_config) | _fields(vector.hnsw_config)
    if "memory" in graph:
        graph.setdefault("on_disk", graph["memory"] == COLD)
    found |= flat("hnsw", graph)
    own = vector.quantization_config
    chosen = own if own.WhichOneof("quantization") else config.quantization_config
    if kind := chosen.WhichOneof("quantization"):
        options = _fields(getattr(chosen, kind))
        if "memory" in options:
            options.setdefault("always_ram", options["memory"] == PINNED)
        found |= {"quantization": kind} | flat(f"quantization.{kind}", options)
    return found


def _fields(message: Any) -> dict[str, Any]:
    """The fields of a message that are set; those of a message within, by its own name."""
    found: dict[str, Any] = {}
    for field, value in message.ListFields():
        if field.message_type is not None:
            found[field.name] = next(iter(_fields(value).values()), None)
        else:
            found[field.name] = _word(message, field.name) if field.enum_type is not None else value
    for field in message.DESCRIPTOR.fields:  # the first of an enumeration is not listed: x4, one bit
        if field.enum_type is not None and not field.has_presence:
            found.setdefault(field.name, _word(message, field.name))
    return found


def _word(message: Any, field: str) -> str:
    names = message.DESCRIPTOR.fields_by_name[field].enum_type.values_by_number
    return str(names[getattr(message, field)].name).lower()


def _set(message: Any, field: str) -> Any:
    return getattr(message, field) if message.HasField(field) else None
