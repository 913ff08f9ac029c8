"""The read stage: shards to blocks of whole records."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import BinaryIO, Protocol

from ingestor.errors import LACKS, ResourceError, SourceError, StoppedError, full_reason
from ingestor.records import RawBlock, Shard, ShardEnd
from ingestor.sources.cutting import Cut, Limits
from ingestor.sources.feed import Feed
from ingestor.sources.fields import Fields
from ingestor.sources.files import LocalFile
from ingestor.sources.remote import Remote
from ingestor.sources.remote_object import RemoteObject
from ingestor.sources.urls import is_url


class Source(Protocol):
    """Where a shard's bytes come from, once its first piece is read."""

    def rest(self) -> AsyncGenerator[bytes, None]:
        """The pieces behind the first one; raises SourceError or OSError."""

    def open(self) -> BinaryIO:
        """A file that can be read anywhere, for one thread."""

    def close(self) -> None:
        """Let go of what is still open."""

    def checked(self, end: ShardEnd) -> ShardEnd:
        """How the reading ended, once more compared with what was listed; may block."""


@dataclass(frozen=True, slots=True)
class Opening:
    """A shard whose first piece was read ahead.

    Attributes:
        source: gives the rest.
        feed: what cuts it.
        first: its first block, if it is cut already.
        cuts: the further blocks of the first piece.
        broken: why there is no more to come, if there is a reason.
    """

    shard: Shard
    source: Source
    feed: Feed
    first: Cut | None
    cuts: Iterator[Cut]
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
    remote: Remote | None = None,
    ahead: int = 4,
) -> AsyncGenerator[RawBlock, None]:
    """Yield the shards' blocks in order; a stop ends the stream without the end of a shard.

    While a shard is read, the beginnings of the next are read ahead. Holds of each no more than a piece and a
    block, or one record where that is larger; of the one that is read some pieces more where it is remote.

    Args:
        shards: read in this order.
        format: of all shards, or `auto`.
        fields: what records have to have, where the beginning of a shard tells; and columns to be read.
        block_bytes: unpacked bytes that a block aims at.
        max_line_bytes: a longer record is refused, and not kept in memory.
        unpack: threads that unpack and split.
        stop: looked at before each piece and each block.
        remote: the way to shards behind URLs; None where there are none.
        ahead: shards that are open at once.
    """
    limits = Limits(block_bytes, max_line_bytes)
    waiting = iter(shards)
    opening: deque[Future[Opening]] = deque()
    number = 0
    try:
        while True:
            while len(opening) < ahead and (shard := next(waiting, None)):
                opening.append(_begin(shard, format, limits, fields, unpack, remote))
            if not opening:
                return
            try:
                opened = await _opened(opening.popleft(), remote)
            except StoppedError:
                return
            async with aclosing(_read_shard(opened, unpack, stop)) as blocks:
                async for block in blocks:
                    if stop.is_set():
                        return
                    yield replace(block, number=number)
                    number += 1
    finally:
        for future in opening:
            future.cancel()
            future.add_done_callback(_let_go)


def _begin(
    shard: Shard,
    format: str,  # noqa: A002
    limits: Limits,
    fields: Fields,
    unpack: Executor,
    remote: Remote | None,
) -> Future[Opening]:
    if is_url(shard.path):
        assert remote is not None
        return remote.submit(open_object(shard, format, limits, fields, remote))
    return unpack.submit(open_shard, shard, format, limits, fields)


def open_shard(shard: Shard, format: str, limits: Limits, fields: Fields) -> Opening:  # noqa: A002
    """Read a file's first piece and cut its first block."""
    source = LocalFile(shard)
    feed = Feed(shard, format, limits, fields, source.open)
    try:
        cuts = feed.push(source.first())
        return Opening(shard, source, feed, next(cuts, None), cuts)
    except (SourceError, OSError) as error:
        return Opening(shard, source, feed, None, iter(()), _source_error(error))


async def open_object(
    shard: Shard,
    format: str,  # noqa: A002
    limits: Limits,
    fields: Fields,
    remote: Remote,
) -> Opening:
    """Read a remote object's first piece, in the loop of `remote`; it is cut when its turn has come."""
    source = RemoteObject(shard, remote)
    feed = Feed(shard, format, limits, fields, source.open)
    try:
        return Opening(shard, source, feed, None, feed.push(await source.first()))
    except SourceError as error:
        return Opening(shard, source, feed, None, iter(()), error)


async def _opened(future: Future[Opening], remote: Remote | None) -> Opening:
    return await (remote.arrived(future) if remote else asyncio.wrap_future(future))


def _let_go(future: Future[Opening]) -> None:
    """Close what was opened and is not read."""
    if not future.cancelled() and not future.exception():
        future.result().source.close()


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
    except StoppedError:
        return
    except (SourceError, OSError) as error:
        broken = _source_error(error)
    finally:
        opened.source.close()
    if stop.is_set():
        return
    run = partial(asyncio.get_running_loop().run_in_executor, unpack)
    rest, end = await run(opened.feed.finish, broken)
    end = await run(opened.source.checked, end)
    for cut in rest[:-1]:
        yield _block(opened, cut)
    last = rest[-1] if rest else Cut(0, 0, b"")
    yield replace(_block(opened, last), taken=max(0, opened.shard.size - taken), end=end)


async def _cut_shard(opened: Opening, unpack: Executor, stop: asyncio.Event) -> AsyncGenerator[Cut, None]:
    """Yield what fills a block: of the piece that was read ahead, and then of the rest of the shard."""
    run = partial(asyncio.get_running_loop().run_in_executor, unpack)
    if opened.first:
        yield opened.first
    while cut := await run(next, opened.cuts, None):
        yield cut
    if opened.broken or opened.feed.reads_file:
        return
    async with aclosing(opened.source.rest()) as pieces:
        async for piece in pieces:
            if stop.is_set():
                return
            cuts = opened.feed.push(piece)
            while cut := await run(next, cuts, None):
                yield cut


def _block(opened: Opening, cut: Cut) -> RawBlock:
    return RawBlock(0, opened.shard, opened.feed.format, cut.place, cut.offset, cut.data, cut.failures)


def _source_error(error: SourceError | OSError) -> SourceError:
    """What is wrong with a shard.

    Raises:
        ResourceError: nothing is, the machine lacks something; other shards would fare no better.
    """
    if isinstance(error, SourceError):
        return error
    if error.errno in LACKS:
        raise ResourceError(full_reason(error)) from error
    kind = "vanished" if isinstance(error, FileNotFoundError) else "unreadable"
    return SourceError(kind, error.strerror or str(error))
