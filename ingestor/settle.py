"""When a document counts as done: its points are durable, its surplus is gone, and the ledger says so."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable
from typing import Protocol

from ingestor.book import Book
from ingestor.records import Applied, Census, UInt8s
from ingestor.state.identity import as_ids, point_ids
from ingestor.state.ledger import Ledger
from ingestor.state.writes import Writes
from ingestor.watching.tally import Tally

FLUSH_REQUESTS = 16
FLUSH_S = 1.0
FLUSH_ROWS = 65_536


class Sinks(Protocol):
    """What is needed of the sinks once points are applied."""

    async def delete(self, ids: UInt8s) -> None:
        """Delete the points with these ids, uint8[n, 16]."""

    async def flush(self) -> None:
        """Make durable all that was applied before."""


async def settle(
    events: AsyncIterator[Census | Applied], *, sinks: Sinks, ledger: Ledger, tally: Tally, window: int
) -> int:
    """Record what is done, in this order: points durable, surplus deleted, rows written, shards finished.

    Args:
        window: blocks that may be judged and not have come here yet; see `Book`.

    Returns:
        How many documents are still under way at the end: none, unless the run was stopped.
    """
    book = Book(tally, window)
    waiting = Writes()
    requests, flushed = 0, time.monotonic()
    async for event in events:
        if isinstance(event, Applied):
            book.applied(event)
            requests += 1
        else:
            book.open(event, waiting)
        if requests >= FLUSH_REQUESTS or len(waiting) >= FLUSH_ROWS or time.monotonic() - flushed >= FLUSH_S:
            await _commit(book, waiting, sinks=sinks, ledger=ledger, tally=tally, written=requests > 0)
            waiting, requests, flushed = Writes(), 0, time.monotonic()
    await _commit(book, waiting, sinks=sinks, ledger=ledger, tally=tally, written=requests > 0)
    return book.unsettled


async def _commit(
    book: Book, writes: Writes, *, sinks: Sinks, ledger: Ledger, tally: Tally, written: bool
) -> None:
    indexed = book.take_done(writes)
    surplus = [found for records in writes.records for found in records.surplus()]
    await delete_points(sinks, surplus, tally)
    if written or surplus:
        await sinks.flush()
    for part in writes.parts():
        await ledger.run(ledger.record, part)
    tally.indexed += indexed  # only now, for the disk may be full
    for census in book.take_ends():
        assert census.end is not None
        name = census.shard.name
        tally.shards_done += not census.shard.again
        if not census.shard.again:
            tally.shard_errors += [(name, kind, detail) for kind, detail in census.end.errors]
            for kind, detail in census.end.warnings:
                tally.warn(name, kind, detail)
            if census.end.finished and not census.end.errors:
                tally.take_over(await ledger.run(ledger.finish, census.shard, census.end.digest))
            else:
                await ledger.run(ledger.failures.break_off, census.shard, census.end.errors)


async def delete_points(sinks: Sinks, documents: Iterable[tuple[str, range]], tally: Tally) -> None:
    """Delete some chunks of some documents from the collection."""
    packed = b"".join(point_ids(document, chunks) for document, chunks in documents)
    for start in range(0, len(packed), 16 * 1000):
        ids = as_ids(packed[start : start + 16 * 1000])
        await sinks.delete(ids)
        tally.points_deleted += len(ids)
