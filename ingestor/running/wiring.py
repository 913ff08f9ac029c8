"""From the settings to what the parts of the package take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ingestor.config.settings import Settings
from ingestor.encoding import model
from ingestor.encoding.model import ModelSpec
from ingestor.errors import ConfigError, IdentityMismatchError, ModelError
from ingestor.preparing.preparer import PrepareOptions
from ingestor.sink import Target, framing_of
from ingestor.sink.collection import differing
from ingestor.sources import Fields, listing
from ingestor.sources.listing import Listing
from ingestor.sources.remote import Remote
from ingestor.state import identity

CHUNKING = 1
"""Raise it when chunk.py cuts the same text in another way."""
CHARS_PER_TOKEN = 6
"""Bounds chunks of text that the vocabulary hardly covers; English has 4 to 5."""


def listing_of(settings: Settings, remote: Remote) -> Listing:
    return listing.list_shards(settings.source.paths, settings.source.root, remote)


def prepare_options(settings: Settings, spec: ModelSpec, state: Path) -> PrepareOptions:
    """What the prepare processes need to know.

    Raises:
        ConfigError: the model does not take so many tokens.
    """
    max_tokens, overlap_tokens, max_chars = chunk_limits(settings, spec)
    return PrepareOptions(
        fields=fields_of(settings),
        spec=spec,
        max_tokens=max_tokens,
        overlap_tokens=overlap_tokens,
        max_chars=max_chars,
        salt=identity.salt_of(identity_of(settings, spec)["record"]),
        ledger=str(state),
        framing=framing_of(target_of(settings, spec)),
        trim=settings.source.oversized == "trim",
    )


def fields_of(settings: Settings) -> Fields:
    source = settings.source
    metadata = None if source.metadata_fields == "*" else source.metadata_fields
    return Fields(text=source.text_field, id=source.id_field, id_scope=source.id_scope, metadata=metadata)


def spec_of(settings: Settings) -> ModelSpec:
    """Find the model and read its own files.

    Raises:
        ModelError: it is not there, or has a part that is not understood.
    """
    encoder = settings.encoder
    try:
        return model.resolve(
            encoder.model,
            revision=encoder.revision,
            pooling=encoder.pooling,
            normalize=encoder.normalize,
            prompt=encoder.prompt,
            query_prompt=encoder.query_prompt,
            truncate_dim=encoder.truncate_dim,
        )
    except ModelError as error:
        raise ModelError(f"encoder.model: {error}") from error


def target_of(settings: Settings, spec: ModelSpec | None) -> Target:
    """The collection; without a model it can be looked at, and not be made."""
    qdrant = settings.qdrant
    return Target(
        url=qdrant.url,
        path=qdrant.path,
        grpc_port=qdrant.grpc_port,
        api_key=qdrant.api_key.get_secret_value() if qdrant.api_key else None,
        ca_file=qdrant.ca_file,
        timeout_s=qdrant.timeout_s,
        collection=qdrant.collection,
        vector_name=qdrant.vector_name,
        distance=qdrant.distance,
        dimension=spec.dimension if spec else 0,
        on_disk=qdrant.on_disk,
        datatype=qdrant.datatype,
        shard_number=qdrant.shard_number,
        replication_factor=qdrant.replication_factor,
        write_consistency_factor=qdrant.write_consistency_factor,
        hnsw=qdrant.hnsw.model_dump(exclude_none=True),
        quantization=qdrant.quantization.model_dump(exclude_none=True) if qdrant.quantization else None,
        payload_indexes=qdrant.payload_indexes,
    )


def identity_of(settings: Settings, spec: ModelSpec) -> dict[str, dict[str, Any]]:
    """What the collection is written with: `vector` must never change, `record` makes every document new."""
    qdrant, source = settings.qdrant, settings.source
    vector = identity.vector_identity(
        spec, distance=qdrant.distance, vector_name=qdrant.vector_name, precision=settings.encoder.precision
    )
    record = {
        "text_field": list(source.text_field),
        "id_field": source.id_field,
        "id_scope": source.id_scope,
        "metadata_fields": "*" if source.metadata_fields == "*" else list(source.metadata_fields),
        "chunking": [CHUNKING, *chunk_limits(settings, spec)],
    }
    return {"vector": vector, "record": record}


def check_known(settings: Settings, there: dict[str, Any] | None, here: dict[str, Any]) -> None:
    """Refuse a state file whose documents have vectors of another model.

    Args:
        settings: the run's.
        there: the vector identity that the state file knows, if it knows one.
        here: that of the settings.

    Raises:
        IdentityMismatchError: names what differs.
    """
    if there is None or there == here:
        return
    raise IdentityMismatchError(
        f"state {settings.state}: the collection holds vectors of another model ({differing(there, here)});"
        " nothing was written. Use another collection and state, or --recreate to embed everything anew"
    )


def reading_of(settings: Settings, record: dict[str, Any]) -> dict[str, Any]:
    """What decides what becomes of a shard's records: a change has every shard read again, and makes no
    document new.
    """
    source = settings.source
    limits = {"max_line_bytes": int(source.max_line_bytes), "oversized": source.oversized}
    return {**record, "format": source.format, **limits}


def chunk_limits(settings: Settings, spec: ModelSpec) -> tuple[int, int, int]:
    """`max_tokens`, `overlap_tokens` and `max_chars` of a chunk.

    Raises:
        ConfigError: the model does not take so many tokens.
    """
    chunk = settings.chunk
    max_tokens = chunk.max_tokens or spec.max_tokens
    if max_tokens > spec.max_tokens:
        raise ConfigError(
            f"chunk.max_tokens: {max_tokens} is more than {spec.name} takes; set {spec.max_tokens} or less"
        )
    return max_tokens, chunk.overlap_tokens, chunk.max_chars or CHARS_PER_TOKEN * max_tokens


def state_lock(settings: Settings) -> Path:
    """The lock file of the state: one run at a time."""
    return Path(settings.state + ".lock")


def engine_lock(settings: Settings) -> Path | None:
    """The lock file of an embedded collection: one process at a time. None for a server."""
    qdrant = settings.qdrant
    return Path(qdrant.path, qdrant.collection + ".lock") if qdrant.path else None


def kept_models(settings: Settings) -> Path:
    """The folder of models that were exported for another runtime, beside the state."""
    return Path(settings.state).parent / "models"
