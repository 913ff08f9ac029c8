"""The last stage before the end: requests go to the sink processes, and their slots become free again."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator

from ingestor.buffers import BufferPool
from ingestor.records import Applied, UpsertRequest
from ingestor.sink.pool import Asked, SinkPool

REQUESTS_PER_PROCESS = 2  # one is written while the next waits, so that no process waits for the loop


async def upsert(
    requests: AsyncIterator[UpsertRequest], *, sinks: SinkPool, buffers: BufferPool
) -> AsyncGenerator[Applied, None]:
    """Write each request's points and release its slot; keeps order, drops nothing.

    Holds two requests for each sink process, but never more than half of the slots: it looks at answers when
    the next request comes, so those who fill slots must have some left.
    """
    most = max(1, min(REQUESTS_PER_PROCESS * sinks.processes, buffers.layout.slots // 2))
    under_way: deque[tuple[int, Asked]] = deque()
    async for request in requests:
        under_way.append((request.slot, sinks.submit(request)))
        while under_way and (len(under_way) >= most or under_way[0][1].done()):
            slot, asked = under_way.popleft()
            applied = await sinks.applied(asked)
            buffers.release(slot)
            yield applied
    for slot, asked in under_way:
        applied = await sinks.applied(asked)
        buffers.release(slot)
        yield applied
