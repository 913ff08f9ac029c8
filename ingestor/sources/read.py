"""The read stage: shards to blocks of whole records."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import aclosing
from dataclasses import dataclass, replace

import aiofiles

from ingestor.errors import LACKS, ResourceError, SourceError, told
from ingestor.records import RawBlock, Shard, ShardEnd
from ingestor.sources.cutting import Cut, Limits
from ingestor.sources.feed import Feed
from ingestor.sources.fields import Fields
from ingestor.sources.files import open_regular
from ingestor.sources.listing import fingerprint_of

PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Opening:
    """A shard whose first piece was read ahead.

    Attributes:
        feed: what cuts it.
        first: its first block, if the first piece fills one.
        cuts: the further blocks of the first piece.
        whole: no further piece is wanted.
        inode: of the file that the first piece is from.
        broken: why there is no more to come, if there is a reason.
    """

    shard: Shard
    feed: Feed
    first: Cut | None
    cuts: Iterator[Cut]
    whole: bool
    inode: int
    broken: SourceError | None = None


async def read_blocks(
    shards: Sequence[Shard],
    *,
    format: str,  # noqa: A002
    fields: Fields,
    block_bytes: int,
    max_line_bytes: int,
    unpack: Executor,
    stop: asyncio.Event,
    ahead: int = 4,
) -> AsyncGenerator[RawBlock, None]:
    """Yield the shards' blocks in order; a stop ends the stream without the end of a shard.

    While a shard is read, the beginnings of the next are read ahead in `unpack`'s threads. Holds of each no
    more than a piece of the file and a block, or one record where that is larger.

    Args:
        shards: read in this order.
        format: of all shards, or `auto`.
        fields: what records have to have, where the beginning of a shard tells; and columns to be read.
        block_bytes: unpacked bytes that a block aims at.
        max_line_bytes: a longer record is refused, and not kept in memory.
        unpack: threads that unpack and split.
        stop: looked at before each piece and each block.
        ahead: shards that are open at once.
    """
    limits = Limits(block_bytes, max_line_bytes)
    waiting = iter(shards)
    opening: deque[Future[Opening]] = deque()
    number = 0
    try:
        while True:
            while len(opening) < ahead and (shard := next(waiting, None)):
                opening.append(unpack.submit(open_shard, shard, format, limits, fields))
            if not opening:
                return
            opened = await asyncio.wrap_future(opening.popleft())
            async with aclosing(_read_shard(opened, unpack, stop)) as blocks:
                async for block in blocks:
                    if stop.is_set():
                        return
                    yield replace(block, number=number)
                    number += 1
    finally:
        for future in opening:
            future.cancel()


def open_shard(shard: Shard, format: str, limits: Limits, fields: Fields) -> Opening:  # noqa: A002
    """Read a shard's first piece and cut its first block."""
    feed = Feed(shard, format, limits, fields)
    try:
        with open(shard.path, "rb", opener=open_regular) as file:
            inode = os.fstat(file.fileno()).st_ino
            piece = file.read(PIECE_BYTES)  # less only at the end of the file
        cuts = feed.push(piece)
        first = next(cuts, None)
        return Opening(shard, feed, first, cuts, feed.reads_file or len(piece) < PIECE_BYTES, inode)
    except (SourceError, OSError) as error:
        return Opening(shard, feed, None, iter(()), True, 0, _told(error))


async def _read_shard(
    opened: Opening, unpack: Executor, stop: asyncio.Event
) -> AsyncGenerator[RawBlock, None]:
    """Yield one shard's blocks, without their numbers."""
    broken, taken = opened.broken, 0
    try:
        async with aclosing(_cut_shard(opened, unpack, stop)) as cuts:
            async for cut in cuts:
                reached = cut.taken or opened.feed.pushed
                yield replace(_block(opened, cut), taken=reached - taken)
                taken = reached
    except (SourceError, OSError) as error:
        broken = _told(error)
    if stop.is_set():
        return
    run = asyncio.get_running_loop().run_in_executor
    rest, end = await run(unpack, opened.feed.finish, broken)
    end = await run(unpack, _unless_changed, opened.shard, end)
    for cut in rest[:-1]:
        yield _block(opened, cut)
    last = rest[-1] if rest else Cut(0, 0, b"")
    yield replace(_block(opened, last), taken=opened.shard.size - taken, end=end)


async def _cut_shard(opened: Opening, unpack: Executor, stop: asyncio.Event) -> AsyncGenerator[Cut, None]:
    """Yield what fills a block: of the piece that was read ahead, and then of the rest of the file."""
    loop = asyncio.get_running_loop()
    if opened.first:
        yield opened.first
        while cut := await loop.run_in_executor(unpack, next, opened.cuts, None):
            yield cut
    if opened.whole:
        return
    async with aiofiles.open(opened.shard.path, "rb", buffering=0, opener=open_regular) as file:
        if os.fstat(file.fileno()).st_ino != opened.inode:
            raise SourceError("vanished", "another file took its place while it was read")
        await file.seek(PIECE_BYTES)
        while not stop.is_set() and (piece := await file.read(PIECE_BYTES)):
            cuts = opened.feed.push(piece)
            while cut := await loop.run_in_executor(unpack, next, cuts, None):
                yield cut


def _block(opened: Opening, cut: Cut) -> RawBlock:
    return RawBlock(0, opened.shard, opened.feed.format, cut.place, cut.offset, cut.data, cut.failures)


def _told(error: SourceError | OSError) -> SourceError:
    """What is wrong with a shard.

    Raises:
        ResourceError: nothing is, the machine lacks something; other shards would fare no better.
    """
    if isinstance(error, SourceError):
        return error
    if error.errno in LACKS:
        raise ResourceError(told(error)) from error
    kind = "vanished" if isinstance(error, FileNotFoundError) else "unreadable"
    return SourceError(kind, error.strerror or str(error))


def _unless_changed(shard: Shard, end: ShardEnd) -> ShardEnd:
    """A file that is not what was listed any more may not be passed over next time."""
    try:
        same = fingerprint_of(os.stat(shard.path)) == shard.fingerprint
    except OSError:
        same = False
    if same or end.errors:
        return end
    changed = ("changed", "the file changed after it was listed; it is read again next time")
    return ShardEnd(False, warnings=(*end.warnings, changed))
