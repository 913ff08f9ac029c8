"""Where points go: a Qdrant server, or the engine embedded in a folder. Light: all processes load it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from ingestor.errors import SinkError
from ingestor.records import Float32s, Points, UInt8s

Refusal = tuple[int, str, str]
"""A point that was not written: (row, kind, detail)."""

POINTS_PER_REQUEST = 256
REQUEST_BYTES = 8 << 20
"""What proxies, write-ahead logs and memory bear well; a point that does not fit in is refused."""
TOO_LARGE = "payload_too_large"


@dataclass(frozen=True, slots=True)
class Target:
    """Where a collection is, and what it is to be like when it has to be made.

    Attributes:
        url: of the server as people know it, http(s)://host:6333; or None.
        path: folder of the embedded engine; or None.
        grpc_port: where the server speaks gRPC.
        api_key: sent with every call; never shown.
        ca_file: certificates to trust, in place of the system's.
        timeout_s: deadline of one call to the server, in seconds.
        collection: its name.
        vector_name: None for the one unnamed vector.
        distance: Cosine, Dot, Euclid or Manhattan.
        dimension: of the vectors.
        payload_indexes: field to kind of index; `document` gets its own.
    """

    url: str | None
    path: str | None
    grpc_port: int
    api_key: str | None = field(repr=False)
    ca_file: str | None
    timeout_s: float
    collection: str
    vector_name: str | None
    distance: str
    dimension: int
    on_disk: bool | None = None
    datatype: str | None = None
    shard_number: int | None = None
    replication_factor: int | None = None
    write_consistency_factor: int | None = None
    hnsw: Mapping[str, Any] = field(default_factory=dict)
    quantization: Mapping[str, Any] | None = None
    payload_indexes: Mapping[str, str] = field(default_factory=dict)

    @property
    def indexes(self) -> dict[str, str]:
        """All payload indexes: the one that finds a document's points, and those asked for."""
        return {"document": "keyword", **self.payload_indexes}

    def __str__(self) -> str:
        return f"collection {self.collection!r} " + (f"at {self.url}" if self.url else f"in {self.path}")


@dataclass(frozen=True, slots=True)
class Hit:
    """A chunk that a search found; `payload` holds the fields that have no attribute of their own."""

    document: str
    chunk: int
    score: float
    text: str
    payload: dict[str, Any]

    @classmethod
    def of(cls, score: float, payload: dict[str, Any]) -> Hit:
        """Make a hit of a stored point's payload, which others may have written, too."""
        rest = dict(payload)
        document = str(rest.pop("document", ""))
        chunk = rest.pop("chunk") if isinstance(rest.get("chunk"), int) else 0
        return cls(document, chunk, score, str(rest.pop("text", "")), rest)


@dataclass(frozen=True, slots=True)
class Stored:
    """A point as the collection holds it.

    Attributes:
        id: 16 bytes; None for a number, which no point of this program has.
        payload: the fields that were asked for.
        vector: None unless it was asked for.
    """

    id: bytes | None
    payload: dict[str, Any]
    vector: Float32s | None = None


@dataclass(frozen=True, slots=True)
class IndexState:
    """How the search index is doing.

    Attributes:
        name: green, yellow (under way), grey (to be continued) or red (failed); "none" without a server.
        detail: more about it, in words.
    """

    name: str
    detail: str = ""


class Sink(Protocol):
    """The writing side of a collection; lives in a sink process."""

    def upsert(self, vectors: Float32s, points: Points) -> list[Refusal]:
        """Write float32[n, dimension] and n points; names those that the collection refuses."""
        ...

    def delete(self, ids: UInt8s) -> None:
        """Delete the points with these ids, uint8[n, 16]."""
        ...

    def flush(self) -> None:
        """Make durable what was written."""
        ...

    def optimize(self) -> None:
        """Build what makes searches fast, where no server does so by itself."""
        ...

    def count(self) -> int:
        """Points that this process is responsible for, exactly."""
        ...

    def close(self) -> None:
        """Flush, and let go of the collection."""
        ...


class Reader(Protocol):
    """The reading side of a collection, for commands and tests; used in the process that opens it."""

    def search(
        self,
        vectors: Float32s,
        k: int,
        *,
        exact: bool = False,
        filter: Mapping[str, str | int] | None = None,  # noqa: A002
    ) -> list[list[Hit]]:
        """The k nearest chunks of each of float32[n, dimension], best first; `filter`: equal fields."""
        ...

    def count(self) -> int:
        """Points in the collection, exactly."""
        ...

    def identity(self) -> dict[str, Any] | None:
        """What the collection was written with; None where nothing says so."""
        ...

    def scan(self, fields: Sequence[str] | None = None, *, vectors: bool = False) -> Iterator[list[Stored]]:
        """Every point, some hundreds at a time; `fields`: these of the payload (None: all)."""
        ...

    def retrieve(
        self, ids: Sequence[bytes], fields: Sequence[str] | None = None, *, vectors: bool = False
    ) -> list[Stored]:
        """Those of some points that are there, in no order; ask for some hundreds at a time."""
        ...

    def index_state(self) -> IndexState:
        """How the search index is doing."""
        ...

    def close(self) -> None:
        """Let go of the collection."""
        ...


def framing_of(target: Target) -> Literal["json", "protobuf"]:
    """How the target's sink wants payloads framed; see `framing`."""
    return "protobuf" if target.url else "json"


def open_reader(target: Target) -> Reader:
    """Open an existing collection for reading.

    Raises:
        NothingThereError: it is not there.
        SinkError: the server cannot be used.
        LockedError: another process has the embedded collection open.
    """
    if target.url:
        from ingestor.sink.server_reader import ServerReader

        return ServerReader(target)
    from ingestor.sink.embedded_reader import EmbeddedReader

    return EmbeddedReader(target)


def check_target(target: Target) -> str:
    """Say in one line what is there; raises what opening it for a run would raise."""
    from ingestor.sink.collection import store_of
    from ingestor.sink.folder import folder_of
    from ingestor.sink.place import check_place

    if not target.url:
        check_place(folder_of(target))
    with store_of(target) as store:
        about, found = store.about(), store.read()
    if found is None:
        return f"{about}; {target} will be made"
    return f"{about}; {target} holds {found.points} points"


def requests(points: Points, row_bytes: int, most_bytes: int = REQUEST_BYTES) -> Iterator[tuple[int, int]]:
    """Cut points into requests, [start, stop) each, as few and as even as points and bytes allow."""
    most = -(-len(points) // -(-len(points) // POINTS_PER_REQUEST)) if len(points) else 0
    start, held = 0, 0
    for row, size in enumerate(sizes(points.payloads, row_bytes)):
        if row > start and (row - start == most or held + size > most_bytes):
            yield start, row
            start, held = row, 0
        held += size
    if len(points) > start:
        yield start, len(points)


def sizes(payloads: Sequence[bytes], row_bytes: int) -> list[int]:
    """Bytes of each point in a request, nearly."""
    return [len(payload) + row_bytes + 100 for payload in payloads]


class RefusedError(SinkError):
    """The collection will not have a point, whenever it is asked; others of the same request may do.

    Args:
        kind: one of the names in the report.
        detail: what the collection said.
    """

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(kind, detail)
        self.kind = kind
        self.detail = detail

    def __str__(self) -> str:
        return self.detail
