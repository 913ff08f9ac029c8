"""The values that flow from stage to stage.

Blocks and batches are column-wise: one array or list for each property, one entry for each document or chunk.
The main process never makes an object for a single document or chunk.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

Bools = npt.NDArray[np.bool_]
Float32s = npt.NDArray[np.float32]
Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
UInt8s = npt.NDArray[np.uint8]

DOCUMENTS_PER_BLOCK = 1 << 24
"""A document's serial number in a run is `block.number * DOCUMENTS_PER_BLOCK + its index in the block's
census`.
"""


@dataclass(frozen=True, slots=True)
class Shard:
    """One file of the source.

    Attributes:
        key: number of this reading of the shard in the ledger; 0 before the ledger has planned the run.
        name: path relative to the source's root, always valid text; what state, payloads and messages say.
        path: how to open it (may hold surrogates where the name on disk is no UTF-8).
        size: bytes on disk.
        fingerprint: changes when the file does.
        position: its place in the listing, which is sorted by name.
        again: the shard was read before in this run; only documents that wait for it are taken.
    """

    key: int
    name: str
    path: str
    size: int
    fingerprint: str
    position: int = 0
    again: bool = False


@dataclass(frozen=True, slots=True)
class ShardEnd:
    """How the reading of one shard ended.

    Attributes:
        finished: everything there was to read was read, so the shard may be passed over while it stays the
            same.
        errors: (kind, detail) of what broke the shard off; an error excludes `finished`.
        warnings: (kind, detail) of what people should know.
        digest: of the file's bytes, where they are all known.
    """

    finished: bool
    errors: tuple[tuple[str, str], ...] = ()
    warnings: tuple[tuple[str, str], ...] = ()
    digest: str | None = None


@dataclass(frozen=True, slots=True)
class RawBlock:
    """Some whole records of one shard, still packed as they lay in the (decompressed) file.

    Attributes:
        number: running number in this run, from 0, without a gap.
        shard: the shard that the records are from.
        format: which module of `sources` can parse `data`.
        place: place of the first record in the shard, from 1: its line, page or row.
        offset: position of `data` in the decompressed shard, in bytes.
        data: the records.
        failures: records that the reader itself had to refuse, a line longer than the limit for instance.
        taken: bytes of the file, as it lies on disk, that were read since the shard's block before.
        end: set on the shard's last block, whose `data` may be empty.
    """

    number: int
    shard: Shard
    format: str
    place: int
    offset: int
    data: bytes
    failures: tuple[Failure, ...] = ()
    taken: int = 0
    end: ShardEnd | None = None


@dataclass(slots=True)
class Document:
    """One record of a shard, inside a prepare process.

    Attributes:
        id: as text; unique in the source (or, with `id_scope: shard`, made so).
        text: what is hashed. For marked-up formats the markup: the source's `prose` turns it into text later.
        payload: the metadata fields that are kept.
        place: line, page or row in the shard, from 1.
        replaced: characters that could not be kept (lone surrogates, NUL) and were replaced.
    """

    id: str
    text: str
    payload: dict[str, Any]
    place: int
    replaced: int = 0


@dataclass(frozen=True, slots=True)
class Failure:
    """A record that was refused, and why.

    Attributes:
        shard: the shard's name.
        place: line, page or row, from 1.
        offset: byte position in the decompressed shard where it helps, else None.
        document: the document's id where it is known.
        kind: one of the names in the report, `bad_json` for instance.
        detail: what was wrong, in words.
        rejected: refused before it was a document (else: a document that failed later).
    """

    shard: str
    place: int
    kind: str
    detail: str
    document: str | None = None
    offset: int | None = None
    rejected: bool = True


@dataclass(frozen=True, slots=True)
class Skipped:
    """A record passed over by design: a redirect, a page of another namespace."""

    place: int
    kind: str


class Verdict(IntEnum):
    """What a prepare process decided about a document."""

    NEW = 0  # to be embedded
    UNCHANGED = 1  # the collection holds it already
    DUPLICATE = 2  # a later record has the same id
    FAILED = 3  # refused after reading


@dataclass(frozen=True, slots=True)
class Points:
    """Columns of n points, all but their vectors.

    Attributes:
        documents: int64[n], serial number of each point's document.
        ids: uint8[n, 16], the point ids as UUID bytes.
        payloads: n payloads, framed as the sink wants them.
    """

    documents: Int64s
    ids: UInt8s
    payloads: list[bytes]

    def __len__(self) -> int:
        return len(self.documents)

    def slice(self, start: int, stop: int) -> Points:
        return Points(self.documents[start:stop], self.ids[start:stop], self.payloads[start:stop])

    def take(self, rows: npt.NDArray[np.intp]) -> Points:
        payloads = self.payloads
        return Points(self.documents[rows], self.ids[rows], [payloads[row] for row in rows.tolist()])

    @staticmethod
    def join(parts: list[Points]) -> Points:
        if len(parts) == 1:
            return parts[0]
        payloads = [payload for part in parts for payload in part.payloads]
        documents = np.concatenate([part.documents for part in parts])
        return Points(documents, np.concatenate([part.ids for part in parts]), payloads)


@dataclass(frozen=True, slots=True)
class ChunkBlock:
    """The chunks of one block's new documents, in reading order.

    Attributes:
        number: the block's.
        shard: the shard's name.
        tokens: int32[T], the token ids of all chunks back to back, special tokens and prompt among them.
        offsets: int64[n + 1]; chunk i has the tokens `offsets[i]:offsets[i + 1]`.
        points: n points.
    """

    number: int
    shard: str
    tokens: Int32s
    offsets: Int64s
    points: Points


@dataclass(frozen=True, slots=True)
class Batch:
    """Chunks that go through the encoder together; the same columns as a `ChunkBlock`."""

    tokens: Int32s
    offsets: Int64s
    points: Points


def chunks_of(block: ChunkBlock) -> list[Int32s]:
    """The tokens of each chunk."""
    return np.split(block.tokens, block.offsets[1:-1]) if len(block.points) else []


def loose_batch(chunks: Sequence[Int32s]) -> Batch:
    """Chunks that are of no document, given their tokens."""
    offsets = np.concatenate([[0], np.cumsum([len(ids) for ids in chunks])]).astype(np.int64)
    return Batch(np.concatenate(chunks), offsets, no_points(len(chunks)))


def no_points(rows: int) -> Points:
    """Points of no document."""
    return Points(np.zeros(rows, np.int64), np.zeros((rows, 16), np.uint8), [b""] * rows)


@dataclass(frozen=True, slots=True)
class Census:
    """All that a block held, document by document in record order, whatever becomes of its chunks.

    Attributes:
        block: the block's number.
        shard: the shard that was read.
        ids: n document ids.
        keys: int64[n], the hashes of the ids by which the ledger finds them.
        places: int64[n], place of each record in the shard.
        hashes: uint8[n, 16], hash of each record.
        verdicts: uint8[n], of `Verdict`.
        chunks: int32[n]; NEW: chunks under way; UNCHANGED: chunks in the collection; else 0.
        stored: int32[n], chunks that the collection holds of the document from earlier runs.
        known: bool[n], the ledger had records with this id.
        failures: refused records of this block.
        skipped: records passed over by design, by kind.
        warnings: (kind, detail), of single documents.
        replaced_characters: in all documents of the block.
        tokens: of the chunks under way.
        taken: the block's.
        end: how the shard ended, in its last block.
    """

    block: int
    shard: Shard
    ids: list[str]
    keys: Int64s
    places: Int64s
    hashes: UInt8s
    verdicts: UInt8s
    chunks: Int32s
    stored: Int32s
    known: Bools
    failures: tuple[Failure, ...] = ()
    skipped: Mapping[str, int] = field(default_factory=dict)
    warnings: tuple[tuple[str, str], ...] = ()
    replaced_characters: int = 0
    tokens: int = 0
    taken: int = 0
    end: ShardEnd | None = None


@dataclass(frozen=True, slots=True)
class UpsertRequest:
    """Vectors in a slot of the shared pool, and the points they belong to.

    Attributes:
        slot: index of the slot; its first `len(points)` rows hold float32 vectors.
        points: row i of the slot is the vector of point i.
        refused: int32[k], rows whose vector is not finite or is all zero; they must not be written.
    """

    slot: int
    points: Points
    refused: Int32s


@dataclass(frozen=True, slots=True)
class Applied:
    """The sink's answer: the request's points are written, though perhaps not yet durable.

    Attributes:
        documents: int64[n], serial number of each point's document, a number for each point of the request.
        failures: (row, kind, detail) of points that were refused; their documents fail.
    """

    documents: Int64s
    failures: tuple[tuple[int, str, str], ...] = ()
