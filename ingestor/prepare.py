"""RawBlock to ChunkBlock and Census: the stage, whose work is done in worker processes."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import replace
from functools import lru_cache

from ingestor.channel import Channel
from ingestor.preparing.preparer import PrepareOptions, Preparer
from ingestor.records import Applied, Census, ChunkBlock, RawBlock
from ingestor.worker import answer, submit

PROCESS = "a process that prepares documents"


async def prepare(
    blocks: AsyncIterator[RawBlock],
    *,
    workers: Executor,
    options: PrepareOptions,
    census: Channel[Census | Applied],
    intend: Callable[[Census], Awaitable[None]],
    ahead: int,
    limit: int | None,
    enough: asyncio.Event,
) -> AsyncGenerator[ChunkBlock, None]:
    """Prepare blocks in worker processes, `ahead` of them at once; keeps their order.

    A block's new documents are noted by `intend` before its chunks go on. With a limit, the documents beyond
    it are dropped, `enough` is set for the reader, and no shard is reported as ended.
    """
    under_way: deque[tuple[RawBlock, asyncio.Future[tuple[Census, ChunkBlock]]]] = deque()
    left = limit

    async def take() -> ChunkBlock:
        nonlocal left
        block, result = under_way.popleft()
        found, chunks = await answer(workers, result, PROCESS)
        if left is not None:
            if len(found.ids) > left:
                result = submit(workers, prepare_block, options, block, left)
                found, chunks = await answer(workers, result, PROCESS)
            left -= len(found.ids)
            found = replace(found, end=None)
        await intend(found)
        await census.send(found)
        return chunks

    async for block in blocks:
        if left == 0:
            enough.set()
            continue
        under_way.append((block, submit(workers, prepare_block, options, block, None)))
        while under_way and left != 0 and (len(under_way) > ahead or under_way[0][1].done()):
            yield await take()
    while under_way and left != 0:
        yield await take()
    for _, result in under_way:  # beyond the limit
        result.cancel()
    await census.close()


def prepare_block(
    options: PrepareOptions, block: RawBlock, limit: int | None = None
) -> tuple[Census, ChunkBlock]:
    """Prepare one block. Runs in a worker process."""
    return _preparer(options).prepare(block, limit)


@lru_cache(maxsize=1)
def _preparer(options: PrepareOptions) -> Preparer:
    return Preparer(options)
