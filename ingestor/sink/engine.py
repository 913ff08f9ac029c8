"""The embedded engine itself: its settings from ours, its errors as ours."""

from __future__ import annotations

import ctypes
import mmap
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import qdrant_edge as edge

from ingestor.errors import LACKS, ConfigError, IngestorError, LockedError, ResourceError, SinkError
from ingestor.sink import Target

INDEXING_THRESHOLD_KB = 100_000
"""Segments with less are searched without an index, in milliseconds; building one takes far longer."""
HNSW = {"m": 16, "ef_construct": 100, "full_scan_threshold": 10_000}  # the server's own defaults


@contextmanager
def engine_errors(place: Path) -> Iterator[None]:
    """Turn the engine's errors, which have no types, into ours.

    Raises:
        LockedError: another process has the directory open.
        ResourceError: the disk is full, or too many files are open.
        SinkError: anything else.
    """
    try:
        yield
    except IngestorError:
        raise
    except Exception as error:
        text = str(error)
        if "WouldBlock" in text:
            raise LockedError(
                f"{place}: another process has this collection open; wait until it ends (the embedded engine"
                " serves one process at a time, a Qdrant server any number)"
            ) from error
        for lack, advice in LACKS.items():
            if f"os error {lack})" in text or f"[Errno {lack}]" in text:  # the engine's, and Python's
                raise ResourceError(f"{place}: {advice} ({text})") from error
        raise SinkError(f"{place}: {text}") from error


def create_shard(place: Path, config: edge.EdgeConfig) -> edge.EdgeShard:
    """Make a directory of the engine."""
    with engine_errors(place):
        place.mkdir()
        return edge.EdgeShard.create(str(place), config)


def load_shard(place: Path) -> edge.EdgeShard:
    """Open a directory of the engine; none but this process can use it until it is closed.

    Raises:
        LockedError: another process has it open.
        SinkError: it is not there, or the engine cannot read it.
    """
    with engine_errors(place):
        if not (place / "wal").is_dir():
            raise SinkError(f"{place}: a part of the collection is missing; --recreate makes it anew")
        shard = edge.EdgeShard.load(str(place))
        shutil.rmtree(place / "temp_segments", ignore_errors=True)  # of an `optimize` that was killed
        return shard


def release_pages(folder: Path) -> None:
    """Give the mapped pages of the engine's files back to the page cache, where they stay as long as may be.

    The engine maps all that it writes, so without this a writer's memory seems to grow with the collection.
    """
    libc, place = ctypes.CDLL(None, use_errno=True), str(folder.resolve()) + "/"
    for line in Path("/proc/self/maps").read_text("utf-8", "surrogateescape").splitlines():
        span, permissions, *_, path = line.split(maxsplit=5) if line.count("/") else ("", "", "")
        if path.startswith(place) and permissions.endswith("s"):  # shared: what is not written yet is kept
            start, end = (int(address, 16) for address in span.split("-"))
            libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), mmap.MADV_DONTNEED)


def index_kind(field: str, kind: str) -> edge.PayloadSchemaType:
    """The engine's name for a kind of payload index.

    Raises:
        ConfigError: it has none.
    """
    found: edge.PayloadSchemaType = _named(edge.PayloadSchemaType, kind, f"qdrant.payload_indexes.{field}")
    return found


def kind_of(index: edge.PayloadIndexInfo) -> str:
    """Our name for the kind of a payload index."""
    return str(index.data_type).rpartition(".")[2].lower()


def config_of(target: Target) -> edge.EdgeConfig:
    """The engine's settings for a new collection.

    Raises:
        ConfigError: names the setting that the engine does not know.
    """
    params = edge.EdgeVectorParams(
        size=target.dimension,
        distance=_named(edge.Distance, target.distance, "qdrant.distance"),
        datatype=_named(edge.VectorStorageDatatype, target.datatype, "qdrant.datatype")
        if target.datatype
        else None,
        memory=edge.Memory.Cold if target.on_disk else None,
    )
    try:
        return edge.EdgeConfig(
            vectors=params if target.vector_name is None else {target.vector_name: params},
            hnsw_config=edge.HnswIndexConfig(**HNSW | _options(target.hnsw)) if target.hnsw else None,
            quantization_config=_quantization(target.quantization) if target.quantization else None,
            optimizers=edge.EdgeOptimizersConfig(indexing_threshold=INDEXING_THRESHOLD_KB),
        )
    except (TypeError, ValueError) as error:
        raise ConfigError(f"qdrant.hnsw, qdrant.quantization: {error}") from error


def _quantization(settings: Mapping[str, Any]) -> Any:
    """Quantization as people write it for a server: one key, `scalar`, `product` or `binary`."""
    (kind, options), *more = settings.items()
    options = _options(options or {})
    if kind == "scalar" and not more:
        options["type"] = _named(edge.ScalarType, options.get("type", "int8"), "qdrant.quantization")
        return edge.ScalarQuantizationConfig(**options)
    if kind == "product" and not more:
        ratio = _named(edge.CompressionRatio, options.pop("compression", "x16"), "qdrant.quantization")
        return edge.ProductQuantizationConfig(compression=ratio, **options)
    if kind == "binary" and not more:
        return edge.BinaryQuantizationConfig(**options)
    raise ConfigError("qdrant.quantization: one of scalar, product or binary")


def _options(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Options with the engine's own words in place of ours."""
    words = {
        "memory": edge.Memory,
        "encoding": edge.BinaryQuantizationEncoding,
        "query_encoding": edge.BinaryQuantizationQueryEncoding,
    }
    return {
        name: _named(words[name], value, f"qdrant: {name}") if name in words else value
        for name, value in settings.items()
    }


def _named(enum: Any, name: str, setting: str) -> Any:
    """The member of one of the engine's enumerations, whatever the case of its letters; one_bit is OneBit."""
    names = {key.lower(): key for key in dir(enum) if not key.startswith("_")}
    plain = str(name).lower().replace("_", "")
    if plain not in names:
        raise ConfigError(f"{setting}: {name!r} is none of {', '.join(sorted(names))}")
    return getattr(enum, names[plain])
