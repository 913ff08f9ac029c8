"""The sections of the configuration; the text below a setting is what the documentation says of it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, ByteSize, Field, SecretStr, model_validator

from ingestor.config.forms import mistake
from ingestor.config.index_settings import Hnsw, Quantization
from ingestor.config.values import (
    AtLeast0,
    AtLeast1,
    Port,
    Processes,
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
    """Which documents there are, and what of them is read."""

    paths: Texts
    """Files, folders (walked) and patterns (`**` spans folders), from the working directory on; and URLs."""
    root: Text | None = None
    """The folder that shards are named relative to; null: the common folder of the fixed parts of `paths`."""
    format: Literal["auto", "jsonl", "csv", "tsv", "parquet", "text", "mediawiki"] = "auto"
    """What a shard is; `auto` tells by its content, then by its name."""
    text_field: Texts = ("text",)
    """Dotted path of the text to embed; several are joined by a blank line."""
    id_field: Text | None = "id"
    """Dotted path of a document's id; null: the id is made from shard and place."""
    id_scope: Literal["collection", "shard"] = "collection"
    """Where an id is unique; `shard` makes the shard's name part of it."""
    metadata_fields: Annotated[tuple[str, ...] | Literal["*"], BeforeValidator(as_fields)] = ()
    """Dotted paths of what is kept in the payload; `"*"` keeps every field."""
    max_line_bytes: Size = ByteSize(64 << 20)
    """A longer record is refused (`line_too_long`)."""
    oversized: Literal["reject", "trim"] = "reject"
    """A payload that a request cannot hold: refuse its document, or `trim` its largest metadata."""
    sync: Literal["append", "mirror"] = "append"
    """`mirror` also deletes what left the source; `append` keeps it."""
    max_delete_fraction: Annotated[float, Field(ge=0, le=1)] = 0.2
    """`mirror` withholds more deletions than this share, unless `--allow-deletes` is given."""


class Chunk(Section):
    """How a text is cut."""

    max_tokens: AtLeast1 | None = None
    """Tokens in one chunk, special ones and the prompt counted; null: as many as the model takes."""
    overlap_tokens: AtLeast0 = 32
    """Tokens that a chunk repeats from the one before."""
    max_chars: AtLeast1 | None = None
    """Characters in one chunk; null: 6 times `max_tokens`."""

    @model_validator(mode="after")
    def leaves_room(self) -> Chunk:
        if self.max_tokens is not None and self.overlap_tokens >= self.max_tokens:
            raise ValueError(
                f"overlap_tokens ({self.overlap_tokens}) should be less than max_tokens ({self.max_tokens})"
            )
        return self


class Encoder(Section):
    """What makes vectors of chunks."""

    model: Text = "sentence-transformers/all-MiniLM-L6-v2"
    """Hub id, folder, `package:MODULE/FOLDER`, or `hash:384`: vectors from a hash, for trials."""
    revision: Text | None = None
    """Branch, tag or commit of a hub model; the commit is recorded with the collection."""
    device: Annotated[str, AfterValidator(a_device)] = "auto"
    """`auto`, `cpu`, `cuda` or `cuda:N`; `auto` takes a GPU where torch sees one."""
    runtime: Literal["auto", "torch", "openvino", "onnx"] = "auto"
    """What computes the model. `auto`: torch; openvino for int8, and on a CPU where exact and faster."""
    providers: Texts = ("CUDAExecutionProvider", "CPUExecutionProvider")
    """Of ONNX Runtime, by preference; those that it does not have are passed over."""
    precision: Literal["auto", "float32", "float16", "bfloat16", "int8", "fp8"] = "auto"
    """Of the arithmetic; `auto`: float32 on a CPU, on a GPU what suits the model's family."""
    quality_floor: Annotated[float, Field(ge=0, le=1)] = 0.99
    """Least mean cosine to float32 that vectors of eight bits must have, or the run writes nothing."""
    pooling: Literal["auto", "mean", "cls", "last"] = "auto"
    """How token vectors become one; `auto`: as the model's own files say."""
    normalize: Literal["auto"] | bool = "auto"
    """Whether vectors get unit length; `auto`: as the model's own files say."""
    truncate_dim: AtLeast1 | None = None
    """Keep so many values of each vector, for models that were trained for that (Matryoshka); null: all."""
    prompt: str | None = None
    """Put before every chunk; null: the model's own, if it names one."""
    query_prompt: str | None = None
    """Put before every query of `search`; null: the model's own, if it names one."""
    token_budget: Literal["auto"] | AtLeast1 = "auto"
    """Tokens in one batch; `auto` is measured at the start on a GPU."""
    compile: Literal["auto", "on", "off"] = "auto"
    """torch.compile on a GPU; `auto`: when five minutes of work or more lie ahead, in fp8 one minute."""

    @model_validator(mode="after")
    def is_a_form(self) -> Encoder:
        """Refuse what nothing can compute."""
        form = {"device": self.device, "runtime": self.runtime, "precision": self.precision}
        if found := mistake(model=self.model, compile_=self.compile, **form):
            raise ValueError(found)
        return self


class Pipeline(Section):
    """Processes and buffers."""

    prepare_processes: Literal["auto"] | Processes = "auto"
    """Processes that parse, cut and tokenize."""
    sink_processes: Literal["auto"] | Processes = "auto"
    """Processes that write points; fixed for an embedded collection once it is made."""
    buffers: Annotated[int, Field(ge=2)] = 8
    """Slots of shared memory between the encoder and the writers."""
    buffer_bytes: Literal["auto"] | Size = "auto"
    """Size of one slot."""


class Qdrant(Section):
    """Where the points go: a server's `url`, or the embedded engine in the folder `path`."""

    url: Annotated[str, AfterValidator(a_url)] | None = None
    """A server, as people know it: `http(s)://host:6333`; traffic goes to `grpc_port`."""
    api_key: SecretStr | None = None
    """The server's key; better given as QDRANT_API_KEY. Never printed nor stored."""
    grpc_port: Port = 6334
    """The server's gRPC port."""
    ca_file: Text | None = None
    """Certificates to trust instead of the system's, in PEM."""
    timeout_s: Annotated[float, Field(gt=0)] = 60.0
    """Seconds that one request may take."""
    path: Text | None = None
    """Folder of the embedded engine; without `url`, QDRANT_URL and this: `.ingestor/qdrant`."""
    collection: Annotated[str, AfterValidator(a_collection)] = "wiki"
    """The collection's name."""
    vector_name: Text | None = None
    """Name of the vector; null: the collection's unnamed one."""
    distance: Literal["Cosine", "Dot", "Euclid", "Manhattan"] = "Cosine"
    """How vectors are compared."""
    payload_indexes: dict[
        str, Literal["keyword", "integer", "float", "bool", "geo", "datetime", "text", "uuid"]
    ] = Field(default_factory=dict)
    """Payload fields to index, and the kind of each."""
    bulk: Literal["auto", "on", "off"] = "auto"
    """Put a server's index off during the first load; `auto`: before a GPU, from 256 MiB of text."""
    alias: Annotated[str, AfterValidator(a_collection)] | None = None
    """Build a fresh collection behind this alias."""
    on_disk: bool | None = None
    """Keep vectors on disk; null: the server decides, as for all that follows."""
    datatype: Literal["float32", "float16", "uint8"] | None = None
    """How vectors are stored."""
    shard_number: AtLeast1 | None = None
    """Shards of the collection."""
    replication_factor: AtLeast1 | None = None
    """Copies of each shard in a cluster."""
    write_consistency_factor: AtLeast1 | None = None
    """Copies that must have taken a write."""
    keep: AtLeast1 = 1
    """Old collections that are kept behind the alias."""
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
        if self.path is not None and self.alias is not None:
            raise ValueError("has an alias, which only servers know: set url, or leave alias out")
        return self

    @property
    def named(self) -> str:
        """The collection in words: with an alias, the server has to be asked for its full name."""
        return f"{self.collection}__... behind alias {self.alias}" if self.alias else self.collection

    @property
    def target(self) -> str:
        """The target in words."""
        return self.url or f"embedded engine in {self.path}"


class Failures(Section):
    """What a run may leave undone and still end with exit code 0."""

    tolerate: AtLeast0 = 0
    """Open failures that are put up with."""


class Metrics(Section):
    """Counters for Prometheus."""

    port: Port | None = None
    """Serve them there while the run goes on."""
    textfile: Text | None = None
    """Keep them in this file for node_exporter's textfile collector, also after the run."""
