"""What `qdrant.hnsw` and `qdrant.quantization` may say, by Qdrant's own names."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from ingestor.values import AtLeast0, Section

Memory = Literal["cold", "cached", "pinned"]


class Hnsw(Section):
    """The graph that makes searches fast; what is not given here is the server's to choose."""

    m: AtLeast0 | None = None
    ef_construct: Annotated[int, Field(ge=4)] | None = None
    full_scan_threshold: AtLeast0 | None = None
    max_indexing_threads: AtLeast0 | None = None
    on_disk: bool | None = None
    memory: Memory | None = None
    payload_m: AtLeast0 | None = None
    inline_storage: bool | None = None


class Scalar(Section):
    type: Literal["int8"] = "int8"
    quantile: Annotated[float, Field(ge=0.5, le=1)] | None = None
    always_ram: bool | None = None
    memory: Memory | None = None


class Product(Section):
    compression: Literal["x4", "x8", "x16", "x32", "x64"] = "x16"
    always_ram: bool | None = None
    memory: Memory | None = None


class Binary(Section):
    encoding: Literal["one_bit", "two_bits", "one_and_half_bits"] | None = None
    query_encoding: Literal["default", "binary", "scalar4bits", "scalar8bits"] | None = None
    always_ram: bool | None = None
    memory: Memory | None = None


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
