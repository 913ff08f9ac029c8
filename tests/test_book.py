"""What is counted and what is held to be certain while documents are under way."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ingestor.book import Book
from ingestor.errors import ResourceError
from ingestor.records import DOCUMENTS_PER_BLOCK, Applied, Census, Failure, Shard, Verdict
from ingestor.settle import settle
from ingestor.state.identity import as_ids, document_key
from ingestor.state.writes import Writes
from ingestor.watching.tally import WARNINGS_KEPT, Tally

SHARD = Shard(7, "s", "/s", 1, "f")


def census(block: int, *documents: tuple[str, Verdict], chunks: int = 1, **more) -> Census:
    """A block; documents that failed say why."""
    n = len(documents)
    verdicts = np.array([verdict for _, verdict in documents], np.uint8)
    failures = tuple(
        Failure("s", place, "payload_too_large", "", document=id_, rejected=False)
        for place, (id_, verdict) in enumerate(documents, 1)
        if verdict == Verdict.FAILED
    )
    made = Census(
        block=block,
        shard=SHARD,
        ids=[id_ for id_, _ in documents],
        keys=np.array([document_key(id_) for id_, _ in documents], np.int64),
        places=np.arange(1, n + 1),
        hashes=as_ids(bytes(16 * n)),
        verdicts=verdicts,
        chunks=np.where(verdicts == Verdict.NEW, chunks, 0).astype(np.int32),
        stored=np.zeros(n, np.int32),
        known=np.zeros(n, np.bool_),
        failures=failures,
    )
    return replace(made, **more)


def answered(block: int, *rows: int) -> Applied:
    return Applied(np.array(rows, np.int64) + block * DOCUMENTS_PER_BLOCK)


def take(book: Book) -> Writes:
    """Everything that can be written by now."""
    writes = Writes()
    book.take_done(writes)
    book.take_ends()
    return writes


def test_a_document_is_done_with_its_last_chunk():
    book = Book(Tally(), window=4)
    book.open(census(0, ("a", Verdict.NEW), ("b", Verdict.NEW), chunks=2), Writes())
    book.applied(answered(0, 0, 1, 1))
    writes = take(book)
    assert [records.ids for records in writes.records] == [["b"]]
    assert writes.complete == []
    book.applied(answered(0, 0))
    writes = take(book)
    assert [records.ids for records in writes.records] == [["a"]]
    assert (writes.complete, book.unsettled) == ([0], 0)


class Full:
    """Sinks whose disk is full."""

    async def delete(self, _):
        pass

    async def flush(self):
        raise ResourceError("no room on the disk")


async def test_what_could_not_be_recorded_is_not_counted():
    async def events():
        yield census(0, ("a", Verdict.NEW), chunks=1)
        yield answered(0, 0)

    tally = Tally()
    with pytest.raises(ResourceError):
        await settle(events(), sinks=Full(), ledger=None, tally=tally, window=4)
    assert (tally.read, tally.points, tally.indexed) == (1, 1, 0)


def test_a_later_failure_leaves_the_version_under_way_in_doubt():
    tally, writes = Tally(), Writes()
    book = Book(tally, window=4)
    book.open(census(0, ("a", Verdict.NEW), chunks=3), writes)
    book.open(census(1, ("a", Verdict.FAILED)), writes)
    assert [(id_, most) for _, id_, most in writes.doubtful] == [("a", 3)]
    assert [records.chunks.tolist() for records in writes.records if len(records)] == [[0], [0]]
    assert (tally.duplicates, tally.failed, tally.rejected.total()) == (2, 0, 0)


def test_a_block_is_remembered_as_long_as_one_judged_before_its_end_may_come():
    book = Book(Tally(), window=3)
    book.open(census(0, ("a", Verdict.NEW), chunks=5), Writes())
    for number in range(1, 9):
        book.open(census(number), Writes())
    take(book)
    book.applied(answered(0, 0, 0, 0, 0, 0))
    take(book)
    writes = Writes()
    book.open(census(9, ("a", Verdict.NEW), chunks=2), writes)
    assert [most for _, _, most in writes.doubtful] == [5]


def test_a_failure_in_a_second_reading_is_counted_once():
    tally = Tally()
    book = Book(tally, window=4)
    book.open(census(0, ("a", Verdict.DUPLICATE)), Writes())
    book.open(census(1, ("a", Verdict.FAILED), shard=replace(SHARD, again=True)), Writes())
    assert (tally.read, tally.duplicates, tally.failed) == (1, 0, 1)
    assert dict(tally.rejected) == {"payload_too_large": 1}


def test_warnings_are_counted_and_only_some_are_kept():
    tally = Tally()
    for number in range(1000):
        tally.warn("s", "unknown_tokens", str(number))
    assert len(tally.warnings) == WARNINGS_KEPT
    assert tally.warned["s", "unknown_tokens"] == 1000
