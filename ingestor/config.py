"""The settings, and the only reader of configuration file and environment."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ByteSize,
    Field,
    SecretStr,
    ValidationError,
    model_validator,
)

from ingestor.errors import ConfigError
from ingestor.index_settings import Hnsw, Quantization
from ingestor.layers import Layers, read_environment, read_overrides, read_yaml
from ingestor.mistakes import describe
from ingestor.values import (
    AtLeast0,
    AtLeast1,
    Port,
    Section,
    Size,
    Text,
    Texts,
    a_collection,
    a_device,
    a_url,
    as_fields,
)

EMBEDDED_PATH = ".ingestor/qdrant"


class Source(Section):
    paths: Texts
    root: Text | None = None
    format: Literal["auto", "jsonl", "csv", "tsv", "parquet", "text", "mediawiki"] = "auto"
    text_field: Texts = ("text",)
    id_field: Text | None = "id"
    id_scope: Literal["collection", "shard"] = "collection"
    metadata_fields: Annotated[tuple[str, ...] | Literal["*"], BeforeValidator(as_fields)] = ()
    max_line_bytes: Size = ByteSize(64 << 20)
    oversized: Literal["reject", "trim"] = "reject"
    sync: Literal["append", "mirror"] = "append"
    max_delete_fraction: Annotated[float, Field(ge=0, le=1)] = 0.2


class Chunk(Section):
    max_tokens: AtLeast1 | None = None
    overlap_tokens: AtLeast0 = 32
    max_chars: AtLeast1 | None = None

    @model_validator(mode="after")
    def leaves_room(self) -> Chunk:
        if self.max_tokens is not None and self.overlap_tokens >= self.max_tokens:
            raise ValueError(
                f"overlap_tokens ({self.overlap_tokens}) should be less than max_tokens ({self.max_tokens})"
            )
        return self


class Encoder(Section):
    model: Text = "sentence-transformers/all-MiniLM-L6-v2"
    revision: Text | None = None
    device: Annotated[str, AfterValidator(a_device)] = "auto"
    precision: Literal["auto", "float32", "float16", "bfloat16"] = "auto"
    pooling: Literal["auto", "mean", "cls", "last"] = "auto"
    normalize: Literal["auto"] | bool = "auto"
    prompt: str | None = None
    query_prompt: str | None = None
    token_budget: Literal["auto"] | AtLeast1 = "auto"
    compile: Literal["auto", "on", "off"] = "auto"


class Pipeline(Section):
    prepare_processes: Literal["auto"] | AtLeast1 = "auto"
    sink_processes: Literal["auto"] | AtLeast1 = "auto"
    buffers: Annotated[int, Field(ge=2)] = 8
    buffer_bytes: Literal["auto"] | Size = "auto"


class Qdrant(Section):
    """Where the points go: a server's `url`, or the embedded engine in the folder `path`."""

    url: Annotated[str, AfterValidator(a_url)] | None = None
    api_key: SecretStr | None = None
    grpc_port: Port = 6334
    ca_file: Text | None = None
    timeout_s: Annotated[float, Field(gt=0)] = 60.0
    path: Text | None = None
    collection: Annotated[str, AfterValidator(a_collection)] = "wiki"
    vector_name: Text | None = None
    distance: Literal["Cosine", "Dot", "Euclid", "Manhattan"] = "Cosine"
    payload_indexes: dict[
        str, Literal["keyword", "integer", "float", "bool", "geo", "datetime", "text", "uuid"]
    ] = Field(default_factory=dict)
    bulk: Literal["auto", "on", "off"] = "auto"
    alias: Annotated[str, AfterValidator(a_collection)] | None = None
    on_disk: bool | None = None
    datatype: Literal["float32", "float16", "uint8"] | None = None
    shard_number: AtLeast1 | None = None
    replication_factor: AtLeast1 | None = None
    write_consistency_factor: AtLeast1 | None = None
    keep: AtLeast1 = 1
    hnsw: Hnsw = Hnsw()
    quantization: Quantization | None = None

    @model_validator(mode="before")
    @classmethod
    def name_a_target(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("url") is None and values.get("path") is None:
            return values | {"path": EMBEDDED_PATH}
        return values

    @model_validator(mode="after")
    def has_one_target(self) -> Qdrant:
        if self.url is not None and self.path is not None:
            raise ValueError("url and path exclude each other: a server, or the embedded engine in a folder")
        return self

    @property
    def target(self) -> str:
        """The target in words."""
        return self.url or f"embedded engine in {self.path}"


class Failures(Section):
    tolerate: AtLeast0 = 0


class Metrics(Section):
    port: Port | None = None
    textfile: Text | None = None


class Settings(Section):
    """Everything a run can be told; relative paths start at the working directory."""

    source: Source
    chunk: Chunk = Chunk()
    encoder: Encoder = Encoder()
    pipeline: Pipeline = Pipeline()
    qdrant: Qdrant = Qdrant()
    failures: Failures = Failures()
    state: Text = ""
    metrics: Metrics = Metrics()

    @model_validator(mode="before")
    @classmethod
    def fill_up(cls, values: Any) -> Any:
        """An empty section is one without settings; the state is named after the collection."""
        if not isinstance(values, dict):
            return values
        given = {key: value for key, value in values.items() if value is not None}
        qdrant = given.get("qdrant")
        collection = qdrant.get("collection") if isinstance(qdrant, dict) else None
        return {"source": {}, "state": f".ingestor/{collection or 'wiki'}.sqlite3"} | given


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What the command line says about this one run.

    Attributes:
        limit: documents to read at most; finishes no shard, deletes nothing.
        full: embed everything again, in place.
        recreate: drop the collection and its state first.
        adopt: take over a collection that was written from another state file.
        allow_deletes: mirror may delete more than `max_delete_fraction`.
        dry_run: read, chunk and count only.
        chunks: file for the chunks of a dry run, as JSON Lines.
        lock_wait_s: how long to wait for another run to end.
        drain_timeout_s: how long a stopped run may take to write what is packed.
        profile: folder for a trace of some batches.
        profile_window: how many batches go before those, and how many are in the trace.
    """

    limit: int | None = None
    full: bool = False
    recreate: bool = False
    adopt: bool = False
    allow_deletes: bool = False
    dry_run: bool = False
    chunks: Path | None = None
    lock_wait_s: float = 0.0
    drain_timeout_s: float = 8.0
    profile: Path | None = None
    profile_window: tuple[int, int] = (20, 20)


def load(path: Path, overrides: Sequence[str] = (), environ: Mapping[str, str] | None = None) -> Settings:
    """Read the settings: `overrides` cover the environment, which covers the file, which covers the defaults.

    Args:
        path: the YAML file.
        overrides: `section.field=value`, the value as YAML.
        environ: the process's own if None.

    Raises:
        ConfigError: with a line for each mistake: where it is, what it is, what would be right.
    """
    environ = os.environ if environ is None else environ
    layers = Layers()
    layers.add(*read_yaml(read_file(path), str(path), environ))
    for dotted, value, origin in read_qdrant_environment(environ, layers):
        layers.add_value(dotted, value, origin)
    for dotted, value, origin in (*read_environment(environ), *read_overrides(overrides)):
        layers.add_value(dotted, value, origin)
    try:
        return Settings.model_validate(layers.values)
    except ValidationError as error:
        raise ConfigError("\n".join(describe(error, Settings, layers))) from None


def read_file(path: Path) -> str:
    try:
        return path.read_text("utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such file; name the configuration with --config") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text at byte {error.start}") from None


def read_qdrant_environment(environ: Mapping[str, str], file: Layers) -> list[tuple[str, Any, str]]:
    """Qdrant's own variables; a folder named in the file is not overruled by a URL that happens to be set."""
    section = file.values.get("qdrant")
    has_folder = isinstance(section, dict) and section.get("path") is not None
    names = [("QDRANT_API_KEY", "qdrant.api_key")] + ([] if has_folder else [("QDRANT_URL", "qdrant.url")])
    return [
        (dotted, environ[name], f"environment variable {name}") for name, dotted in names if environ.get(name)
    ]


def refuse_unbuilt(settings: Settings) -> None:
    """Refuse settings that ask for what this version cannot do, rather than pass over them.

    Raises:
        ConfigError: with a line for each.
    """
    qdrant, source = settings.qdrant, settings.source
    unbuilt = [
        ("source.paths", next((path for path in source.paths if "://" in path), None)),
        ("qdrant.alias", qdrant.alias),
    ]
    refused = [f"{name}: {value} is not built yet; leave it out" for name, value in unbuilt if value]
    if refused:
        raise ConfigError("\n".join(refused))
