"""What `qdrant.hnsw` and `qdrant.quantization` may say, by Qdrant's own names."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from ingestor.config.values import AtLeast0, Section

Memory = Literal["cold", "cached", "pinned"]


class Hnsw(Section):
    """The graph that makes searches fast; what is not given here is the server's to choose."""

    m: AtLeast0 | None = None
    """Links of a point in the graph; 0: no graph."""
    ef_construct: Annotated[int, Field(ge=4)] | None = None
    """Neighbours looked at while the graph is built."""
    full_scan_threshold: AtLeast0 | None = None
    """Kilobytes of vectors below which a search compares with all of them."""
    max_indexing_threads: AtLeast0 | None = None
    """Threads that build graphs; 0: the server decides."""
    on_disk: bool | None = None
    """Keep the graph on disk; the older way to say `memory`."""
    memory: Memory | None = None
    """Where the graph is kept; server 1.19 or newer."""
    payload_m: AtLeast0 | None = None
    """Links of a point among those of one payload value."""
    inline_storage: bool | None = None
    """Store vectors within the graph."""


class Scalar(Section):
    """One byte a value."""

    type: Literal["int8"] = "int8"
    """The only kind there is."""
    quantile: Annotated[float, Field(ge=0.5, le=1)] | None = None
    """Share of the values that the range covers."""
    always_ram: bool | None = None
    """Keep them in memory; the older way to say `memory`."""
    memory: Memory | None = None
    """Where they are kept; server 1.19 or newer."""


class Product(Section):
    """Parts of vectors by their number in a code book."""

    compression: Literal["x4", "x8", "x16", "x32", "x64"] = "x16"
    """How much smaller they get."""
    always_ram: bool | None = None
    """Keep them in memory; the older way to say `memory`."""
    memory: Memory | None = None
    """Where they are kept; server 1.19 or newer."""


class Binary(Section):
    """One bit or two a value."""

    encoding: Literal["one_bit", "two_bits", "one_and_half_bits"] | None = None
    """Bits a value."""
    query_encoding: Literal["default", "binary", "scalar4bits", "scalar8bits"] | None = None
    """Of the query's values."""
    always_ram: bool | None = None
    """Keep them in memory; the older way to say `memory`."""
    memory: Memory | None = None
    """Where they are kept; server 1.19 or newer."""


class Quantization(Section):
    """Smaller copies of the vectors, of one kind."""

    scalar: Scalar | None = None
    product: Product | None = None
    binary: Binary | None = None

    @model_validator(mode="after")
    def is_of_one_kind(self) -> Quantization:
        if len(self.model_dump(exclude_none=True)) != 1:
            raise ValueError("should have one of scalar, product or binary, like {scalar: {type: int8}}")
        return self
