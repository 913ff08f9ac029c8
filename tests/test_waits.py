"""What a sink process waits for is seen while it waits, and told at the end."""

from __future__ import annotations

import asyncio

from ingestor.buffers import BufferPool
from ingestor.records import UpsertRequest
from ingestor.sink.pool import SinkPool
from tests.servers import QdrantServer
from tests.sinks import IDENTITY, points_of, refused, served, stored, vectors_of

LIMITED = {"code": "RESOURCE_EXHAUSTED", "metadata": {"retry-after": "1"}}


async def test_a_wait_is_shown_while_it_lasts_and_counted(qdrant_server: QdrantServer) -> None:
    target, shown = served(qdrant_server), asyncio.Queue[str]()
    buffers = BufferPool.create("waits", slots=1, rows=10, dimension=8)
    pool = await SinkPool.open(target, identity=IDENTITY, processes=1, show=shown.put_nowait)
    try:
        await pool.attach(buffers.layout)
        slot = await buffers.acquire()
        slot.vectors[:] = vectors_of(10)
        qdrant_server.fault(**LIMITED)
        qdrant_server.fault(code="UNAVAILABLE")
        asked = pool.submit(UpsertRequest(slot.index, points_of(target, 10), refused()))
        async with asyncio.timeout(20):
            assert await shown.get() == "waiting 1 s: the server limits the rate of writing"
            assert not asked.done()
            await pool.applied(asked)
    finally:
        await pool.close()
        buffers.close()
    rest = [shown.get_nowait() for _ in range(shown.qsize())]
    assert rest[0] == rest[-1] == ""
    told = dict(pool.waits.remarks())
    assert set(told) == {"rate_limited", "server_unavailable"}
    assert told["rate_limited"].startswith("the server limits the rate of writing: waited 1.")
    assert len(stored(target)) == 10
