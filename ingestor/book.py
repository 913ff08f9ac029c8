"""What is under way between a block's census and its last written point."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ingestor.records import DOCUMENTS_PER_BLOCK, Applied, Bools, Census, Failure, Int32s, Verdict
from ingestor.state.writes import Records, Writes
from ingestor.watching.tally import Tally


@dataclass(slots=True)
class _Open:
    """A block of which not everything is recorded.

    Attributes:
        left: int32[n], chunks of each new document that are not applied yet.
        recorded: bool[n].
        void: bool[n], another record with the same id came while this one was under way: it is not recorded,
            but read again.
        refused: documents that failed in the sink: index to (kind, detail).
        closed: the newest block when the last of it was recorded; None before that.
    """

    census: Census
    left: Int32s
    recorded: Bools
    void: Bools
    refused: dict[int, tuple[str, str]] = field(default_factory=dict)
    closed: int | None = None


class Book:
    """What is under way in one pass over the source, block by block. Plain calculation: it never waits.

    Args:
        tally: what to count into.
        window: blocks that may have been judged, and not opened here yet, when one is recorded.
    """

    def __init__(self, tally: Tally, window: int) -> None:
        self._tally = tally
        self._window = window
        self._blocks: dict[int, _Open] = {}
        self._flying: dict[str, int] = {}  # id of a new document: its serial number
        self._done: list[tuple[_Open, npt.NDArray[np.intp]]] = []
        self._ends: list[Census] = []

    @property
    def unsettled(self) -> int:
        """Documents that are still under way."""
        return sum(int(np.count_nonzero(~block.recorded)) for block in self._blocks.values())

    def open(self, census: Census, writes: Writes) -> None:
        """Take note of a block; adds what can be written of it at once to `writes`."""
        new = census.verdicts == Verdict.NEW
        left = np.where(new, census.chunks, 0).astype(np.int32)
        block = self._blocks[census.block] = _Open(census, left, ~new, np.zeros(len(new), np.bool_))
        self._count(census)
        self._contend(block, writes)
        if (~new).any():
            writes.records.append(Records.of(census, np.flatnonzero(~new & ~block.void)))
        writes.failures += [(failure, census.shard.key) for failure in census.failures]
        flying = np.flatnonzero(new)
        ids = census.ids if len(flying) == len(new) else [census.ids[row] for row in flying.tolist()]
        self._flying.update(zip(ids, (flying + census.block * DOCUMENTS_PER_BLOCK).tolist(), strict=True))
        if census.end is not None:
            self._ends.append(census)

    def applied(self, answer: Applied) -> None:
        """Take note of written points."""
        self._tally.points += len(answer.documents) - len(answer.failures)
        for row, kind, detail in answer.failures:
            number, index = divmod(int(answer.documents[row]), DOCUMENTS_PER_BLOCK)
            self._blocks[number].refused[index] = (kind, detail)
        numbers, indices = np.divmod(answer.documents, DOCUMENTS_PER_BLOCK)
        for number in np.unique(numbers).tolist():
            block = self._blocks[number]
            touched, counts = np.unique(indices[numbers == number], return_counts=True)
            block.left[touched] -= counts.astype(np.int32)
            done = touched[(block.left[touched] == 0) & ~block.recorded[touched]]
            if len(done):
                self._done.append((block, done))

    def take_done(self, writes: Writes) -> int:
        """Add the documents all of whose points are written; here they count as recorded from now on.

        Returns:
            How many there are, for the tally when they are.
        """
        indexed = 0
        for block, rows in self._done:
            block.recorded[rows] = True
            rows = rows[~block.void[rows]]
            if block.refused:
                refused = np.isin(rows, list(block.refused))
                self._fail(block, rows[refused], writes)
                rows = rows[~refused]
            writes.records.append(Records.of(block.census, rows))
            indexed += len(rows)
        self._done.clear()
        newest = max(self._blocks, default=0)
        for number, block in self._blocks.items():
            if block.closed is None and block.recorded.all():
                block.closed = newest
                writes.complete.append(number)
        return indexed

    def _fail(self, block: _Open, rows: npt.NDArray[np.intp], writes: Writes) -> None:
        """Documents that the sink refused a point of: all of their points go."""
        census, records = block.census, Records.of(block.census, rows)
        records.stored = np.maximum(records.chunks, records.stored)
        records.chunks = np.full_like(records.chunks, -1)
        writes.records.append(records)
        for row, place, id_ in zip(rows.tolist(), records.places.tolist(), records.ids, strict=True):
            kind, detail = block.refused[row]
            failure = Failure(census.shard.name, place, kind, detail, document=id_, rejected=False)
            writes.failures.append((failure, census.shard.key))
            self._tally.rejected[kind] += 1
            self._tally.refuse([failure])
        self._tally.failed += len(rows)

    def take_ends(self) -> list[Census]:
        """Ends of shards all of whose blocks are recorded; forgets what nothing can refer to any more."""
        newest = max(self._blocks, default=0)
        open_shards = set()
        for number, block in list(self._blocks.items()):
            if block.closed is None:
                open_shards.add(block.census.shard.key)
            elif newest - block.closed > self._window:  # every later census was judged with it in the ledger
                for id_ in self._blocks.pop(number).census.ids:
                    if self._flying.get(id_, -1) // DOCUMENTS_PER_BLOCK == number:
                        del self._flying[id_]
        ready = [census for census in self._ends if census.shard.key not in open_shards]
        self._ends = [census for census in self._ends if census.shard.key in open_shards]
        return ready

    def _count(self, census: Census) -> None:
        tally, counts = self._tally, np.bincount(census.verdicts, minlength=len(Verdict)).tolist()
        tally.failed += counts[Verdict.FAILED]
        failed = [failure.kind for failure in census.failures if not failure.rejected]
        if census.shard.again:  # all its documents were counted when it was read first, these as duplicates
            tally.duplicates -= counts[Verdict.NEW] + counts[Verdict.FAILED]
            tally.rejected.update(failed)
            return
        tally.read += len(census.ids)
        tally.taken += census.taken
        tally.tokens_found += census.tokens
        tally.document_chunks.add(census.chunks[census.verdicts == Verdict.NEW])
        tally.unchanged += counts[Verdict.UNCHANGED]
        tally.duplicates += counts[Verdict.DUPLICATE]
        tally.skipped.update(census.skipped)
        tally.rejected.update(failure.kind for failure in census.failures)
        tally.refuse(census.failures)
        tally.rejected_records += sum(failure.rejected for failure in census.failures)
        tally.replaced_characters += census.replaced_characters
        for kind, detail in census.warnings:
            tally.warn(census.shard.name, kind, detail)

    def _contend(self, block: _Open, writes: Writes) -> None:
        """Record neither version of a document that is under way twice: whose points stay cannot be known."""
        census = block.census
        shared = self._flying.keys() & set(census.ids)
        for here in (i for i, id_ in enumerate(census.ids) if id_ in shared) if shared else ():
            if census.verdicts[here] != Verdict.DUPLICATE:
                number, index = divmod(self._flying[census.ids[here]], DOCUMENTS_PER_BLOCK)
                versions = [self._void(self._blocks[number], index), self._void(block, here)]
                writes.records += versions
                most = max(int(version.stored[0]) for version in versions)
                writes.doubtful.append((int(census.keys[here]), census.ids[here], most))

    def _void(self, block: _Open, index: int) -> Records:
        """One version of a document that is not recorded: its row says that another has the id."""
        census, tally = block.census, self._tally
        if not block.void[index]:
            block.void[index] = True
            tally.duplicates += 1
            if census.verdicts[index] == Verdict.UNCHANGED:
                tally.unchanged -= 1
            elif census.verdicts[index] == Verdict.FAILED:
                tally.failed -= 1
                tally.rejected[_failure(census, index).kind] -= 1
            elif block.recorded[index]:
                tally.indexed -= 1
        version = Records.of(census, np.array([index]))
        version.stored, version.chunks = np.maximum(version.chunks, version.stored), np.zeros(1, np.int32)
        return version


def _failure(census: Census, index: int) -> Failure:
    """Why a document failed in prepare."""
    place = int(census.places[index])
    return next(found for found in census.failures if found.place == place and not found.rejected)
