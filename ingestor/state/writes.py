"""What goes into the ledger: columns of records, and what belongs with them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import orjson

from ingestor.records import Bools, Census, Failure, Int32s, Int64s, UInt8s, Verdict

PART_ROWS = 16_384
"""A tenth of a second for the ledger's thread, which a block of new documents may have to wait for. Smaller
transactions write the same pages of the index again and again."""


@dataclass(slots=True, eq=False)
class Records:
    """Columns of n records of one reading of a shard.

    Attributes:
        shard: the reading's key.
        places, keys: int64[n].
        ids: n document ids.
        hashes: uint8[n, 16].
        chunks: int32[n], what the collection holds of each: 0 if another record has its id, -1 if it failed.
        stored: int32[n], what the collection held of the id before; what is beyond `chunks` is surplus.
        known: bool[n], other records with the same id exist and must lose their chunks.
    """

    shard: int
    places: Int64s
    keys: Int64s
    ids: list[str]
    hashes: UInt8s
    chunks: Int32s
    stored: Int32s
    known: Bools

    @classmethod
    def of(cls, census: Census, rows: npt.NDArray[np.intp]) -> Records:
        """Some documents of a block, as its census sees them."""
        verdicts = census.verdicts[rows]
        chunks = np.where(verdicts == Verdict.FAILED, -1, census.chunks[rows])
        ids = census.ids
        return cls(
            census.shard.key,
            census.places[rows],
            census.keys[rows],
            ids if len(rows) == len(ids) else [ids[row] for row in rows.tolist()],
            census.hashes[rows],
            np.where(verdicts == Verdict.DUPLICATE, 0, chunks).astype(np.int32),
            census.stored[rows],
            census.known[rows],
        )

    def __len__(self) -> int:
        return len(self.ids)

    def packed(self) -> tuple[int, str, bytes]:
        """For one statement: the shard, [[place, key, id, chunks], ...] as JSON, 16 bytes of each hash."""
        columns = self.places.tolist(), self.keys.tolist(), self.ids, self.chunks.tolist()
        return self.shard, orjson.dumps(list(zip(*columns, strict=True))).decode(), self.hashes.tobytes()

    def surplus(self) -> Iterator[tuple[str, range]]:
        """Chunks that the collection must not hold any longer, by document id."""
        kept = np.maximum(self.chunks, 0)
        for row in np.flatnonzero((self.chunks != 0) & (self.stored > kept)).tolist():
            yield self.ids[row], range(int(kept[row]), int(self.stored[row]))


@dataclass(slots=True)
class Writes:
    """What goes into the ledger, in this order.

    Attributes:
        records: those whose points are durable, or that have none.
        failures: refused records, with the key of the reading they were met in.
        doubtful: documents (key, id, most chunks) of which two versions were under way at once.
        complete: blocks of this pass of which nothing is under way any more.
    """

    records: list[Records] = field(default_factory=list)
    failures: list[tuple[Failure, int]] = field(default_factory=list)
    doubtful: list[tuple[int, str, int]] = field(default_factory=list)
    complete: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return sum(map(len, self.records))

    def parts(self) -> Iterator[Writes]:
        """The same in transactions of moderate size, between which others get their turn at the ledger.

        The last part has all but records. A run killed between parts leaves the intents of its blocks, and so
        their documents in doubt.
        """
        self._release_ids()
        start = held = 0
        for stop, records in enumerate(self.records, 1):
            held += len(records)
            if held >= PART_ROWS:
                yield Writes(records=self.records[start:stop])
                start, held = stop, 0
        yield Writes(self.records[start:], self.failures, self.doubtful, self.complete)

    def owners(self) -> list[tuple[int, str]]:
        """Key and id of the documents whose other records must lose their chunks."""
        return [(int(records.keys[row]), records.ids[row]) for records, row in self._owning()]

    def _release_ids(self) -> None:
        """Of two records with one id, the later one alone has the points."""
        last = {records.ids[row]: (records, row) for records, row in self._owning()}
        for records, row in list(self._owning()):
            if last[records.ids[row]] != (records, row):
                records.chunks[row] = 0

    def _owning(self) -> Iterator[tuple[Records, int]]:
        for records in self.records:
            for row in np.flatnonzero(records.known & (records.chunks != 0)).tolist():
                yield records, row
