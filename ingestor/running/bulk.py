"""The first load of a server's collection, with its index put off until all points are there.

The graph's `m` is 0 meanwhile, so the server writes segments and builds no graph for them. The old value lies
in the ledger before it is changed; it is put back when the load ends, however it ends, and if the process was
killed, before the next run writes anything. See docs/adr/0006-put-the-index-off.md.

Both changes are made in the ledger's thread: what a stop no longer waits for there ends before the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, Literal, TypeVar

import orjson

from ingestor.errors import IngestorError, SinkError
from ingestor.running import wiring
from ingestor.running.job import Job
from ingestor.sink import Target, index_watch
from ingestor.sink.index_watch import Verdict, Watch
from ingestor.telemetry import logger

T = TypeVar("T")

KEPT = "bulk"
"""Name in the ledger's meta of what has to be put back."""
MUCH_TEXT_BYTES = 256 << 20
"""About half a million passages: an index over fewer is built in minutes, whenever it is begun."""
AWAY_S = 600.0
"""A server that builds may be silent so long: it answers nobody while it ends what it was building, and may
have been started again for want of memory."""


def puts_off(wanted: Literal["auto", "on", "off"], *, points: int, on_gpu: bool, text_bytes: int) -> bool:
    """Whether the index is put off: never where there are points, for `m: 0` throws away the graph they have.

    `auto` does so where points come faster than a server can index them, and for long: a core indexes a few
    thousand vectors a second, which only a GPU exceeds. Before a CPU the index is done when the load is.
    """
    if wanted == "auto":
        return on_gpu and points == 0 and text_bytes >= MUCH_TEXT_BYTES
    return wanted == "on" and points == 0


async def begin(job: Job, text_bytes: int) -> None:
    """Put the index off, where the settings and the collection are such."""
    target, wanted = wiring.target_of(job.settings, job.spec), job.settings.qdrant.bulk
    if not target.url or wanted == "off" or job.engine is None:
        if wanted == "on" and not target.url:
            job.warn(KEPT, ["the embedded engine builds its index at the end of each run; set auto"])
        return
    if await job.in_ledger(job.ledger.meta, KEPT) is not None:
        return
    points, m = await in_thread(job, target, lambda index: (index.count(), index.links()))
    if not puts_off(wanted, points=points, on_gpu=job.engine.on_gpu, text_bytes=text_bytes):
        if wanted == "on":
            job.warn(
                KEPT, [f"the collection holds {points:,} points; only the load of an empty one is put off"]
            )
        return
    if not m:
        return  # no graph is asked for, or the vector has one of its own
    kept = orjson.dumps({"url": target.url, "collection": target.collection, "m": m}).decode()

    def put_off() -> None:
        job.ledger.set_meta(KEPT, kept)
        with_index(target, lambda index: index.set_links(0))

    job.stack.push_async_callback(restore_quietly, job)
    await job.in_ledger(put_off)
    logger().info("index", text=f"put off until the load ends (m: {m}, 0 meanwhile)")


async def restore(job: Job) -> None:
    """Put back what was changed, by this run or by one that was killed.

    Raises:
        SinkError: the server cannot be asked; the next run tries again.
    """
    packed = None if job.options.dry_run else await job.in_ledger(job.ledger.meta, KEPT)
    if packed is None:
        return
    kept, here = orjson.loads(packed), wiring.target_of(job.settings, job.spec)
    if kept["url"] != here.url:
        place = f"collection {kept['collection']!r} at {kept['url']}"
        job.warn(
            KEPT, [f"{place} was left without an index (m: 0); run once with that url, which puts it back"]
        )
        return

    def put_back(index: Any) -> None:
        # Also where `m` is as it was: a 0 that was asked for in vain may still come, but not after this.
        if index.links() in (0, kept["m"]):  # else it is gone, or somebody has chosen otherwise
            index.set_links(kept["m"])

    def forget() -> None:
        with_index(replace(here, collection=kept["collection"]), put_back)
        job.ledger.set_meta(KEPT, None)

    await job.in_ledger(forget)
    job.index_due = True
    logger().info("index", text=f"no longer put off (m: {kept['m']})")


async def restore_quietly(job: Job) -> None:
    """`restore` where a run ends by an error, which is what people must be told of."""
    try:
        await restore(job)
    except IngestorError as error:
        logger().warning("index", text=f"still put off; the next run puts it back ({error})")


async def finish(job: Job) -> None:
    """End a load: put the index's settings back, and wait until it is built, unless the run is stopped.

    Raises:
        SinkError: the server cannot build it.
    """
    await restore(job)
    if not job.index_due:
        return
    with job.progress.doing("waiting for the search index"):
        await wait_for_index(job)
    job.progress.note = ""


async def wait_for_index(job: Job) -> None:
    """Look again and again until the server has nothing left to do, the run is stopped, or nothing moves."""
    target, loop = wiring.target_of(job.settings, job.spec), asyncio.get_running_loop()
    watch, heard = Watch(target, looks=2), loop.time()
    while not job.stop.is_set():
        try:
            now = await in_thread(job, target, lambda index: index.condition())
        except SinkError:  # nothing is lost by waiting on: all points are there
            if loop.time() - heard >= AWAY_S:
                raise
            await pause(job, index_watch.LOOK_S[1])
            continue
        heard = loop.time()
        verdict = watch.judge(now, loop.time())
        if verdict is Verdict.DONE:
            return
        if verdict is Verdict.STALLED:
            minutes = index_watch.PATIENCE_S / 60
            job.warn(KEPT, [f"the index showed no progress for {minutes:.0f} minutes; `check` looks again"])
            return
        if verdict is Verdict.WAKE:
            with suppress(SinkError):  # it answers when what it is building has stopped, which may be late
                await in_thread(job, target, lambda index: index.wake())
        job.progress.note = f"building the search index, {now}"
        await pause(job, watch.pause_s)


async def pause(job: Job, seconds: float) -> None:
    """Wait, or until the run is stopped."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await job.stop.wait()


async def in_thread(job: Job, target: Target, work: Callable[[Any], T]) -> T:
    """Look at the collection's index, off the loop."""
    return await asyncio.get_running_loop().run_in_executor(job.unpack, with_index, target, work)


def with_index(target: Target, work: Callable[[Any], T]) -> T:
    """Do something with the collection's index, over a connection for that alone; blocks."""
    from ingestor.sink.server_index import ServerIndex

    with ServerIndex(target) as index:
        return work(index)
