"""What a run opens once it turns out that there is something to write: the encoder, and the collection."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Any

import orjson

from ingestor.encoding.tuning import text_bytes_of
from ingestor.records import ChunkBlock, Shard, UInt8s
from ingestor.running import bulk, engine, sampling, wiring
from ingestor.running.engine import Engine
from ingestor.running.job import Job, name_form
from ingestor.sink.pool import SinkPool


async def is_new(job: Job) -> bool:
    """Whether the collection is still to be made, or to be made anew."""
    meta = job.ledger.meta
    return await job.in_ledger(meta, "identity") is None or await job.in_ledger(meta, "recreate") is not None


async def open_writing(job: Job, shards: Sequence[Shard], first: ChunkBlock | None = None) -> None:
    """Open all that embedding these shards needs, unless it is open.

    The collection comes last, so that nothing is made where an encoder refuses the run.

    Args:
        job: the run's.
        shards: that are to be read.
        first: the first chunks that are to be embedded, where they are known.
    """
    with job.progress.doing("loading the model"):
        opened = await open_encoder(job, shards, first)
        await remember(job, opened)
    with job.progress.doing("opening the collection"):
        sinks = await open_sinks(job)
    if not job.can_embed:
        await sinks.attach(opened.buffers.layout)
        await bulk.begin(job, text_bytes_of(shards))
        job.progress.chosen |= opened.announce()  # now that nothing refuses the run any more
        job.watch_engine()
        job.can_embed = True


async def open_encoder(job: Job, shards: Sequence[Shard], first: ChunkBlock | None = None) -> Engine:
    """Open device, encoder and buffers, once.

    Raises:
        ConfigError, ModelError, ResourceError: they cannot be used.
    """
    if job.engine is None:
        job.engine = await engine.open_engine(
            job.stack,
            job.settings,
            job.spec,
            max_tokens=wiring.chunk_limits(job.settings, job.spec)[0],
            lock_name=str(job.state.resolve()),
            text_bytes=text_bytes_of(shards),
            stop=job.stop,
            calibration=job.calibration,
            known=job.quality,
            sample=partial(sampling.take, job, shards, first),
        )
    return job.engine


async def remember(job: Job, opened: Engine) -> None:
    """Keep what names an 8-bit model, and how good its vectors are, before any is written."""
    if opened.calibration and opened.calibration is not job.calibration:
        job.calibration = opened.calibration
        await job.in_ledger(job.ledger.set_meta, "calibration", job.calibration.to_bytes())
    if opened.quality is not job.quality:
        job.quality = opened.quality
        found = orjson.dumps(job.quality).decode() if job.quality else None
        await job.in_ledger(job.ledger.set_meta, "quality", found)
    job.progress.report.quality = job.quality
    name_form(job)


async def open_sinks(job: Job) -> SinkPool:
    """Open the collection for writing, once; makes it or checks whose it is.

    Raises:
        IdentityMismatchError: it holds vectors of another model, or belongs to another state file.
        LockedError, SinkError, ConfigError: it cannot be used.
    """
    async with job.opening:
        if job.sinks is None:
            job.is_known = True
            job.sinks = await job.open_pool(
                wiring.target_of(job.settings, job.spec),
                identity=job.identity,
                processes=engine.sink_processes(job.settings),
                show=partial(setattr, job.progress, "note"),
                recreate=await job.in_ledger(job.ledger.meta, "recreate") is not None,
                adopt=job.options.adopt,
            )
            job.stack.push_async_callback(job.sinks.close)
            job.progress.waited = job.sinks.waits.totals
            job.warn("drift", job.sinks.differences)
            vector = orjson.dumps(job.identity["vector"]).decode()
            await job.in_ledger(job.ledger.set_identity, vector)
            await job.in_ledger(job.ledger.set_meta, "model", job.spec.name)
            await compare_counts(job, job.sinks)
    return job.sinks


async def compare_counts(job: Job, sinks: SinkPool) -> None:
    """Warn of a collection that has other points than the state file knows of, as after one of them was
    restored. Called before the run has written anything.
    """
    least, most = await job.in_ledger(job.ledger.expected_points)
    if not most:
        return
    there = await sinks.count()
    if not least <= there <= most:
        known = f"{least:,}" if least == most else f"{least:,} to {most:,}"
        advice = "`verify` says which differ, `status --rebuild` makes the state file again"
        job.warn("points_differ", [f"it holds {there:,} points, the state file knows of {known}; {advice}"])


async def unless_stopped(job: Job, work: Coroutine[Any, Any, object]) -> bool:
    """Do something that is given up as soon as the run is stopped; whether it is done."""
    try:
        async with asyncio.TaskGroup() as group:
            opening = group.create_task(work, name="open")
            stopped = group.create_task(job.stop.wait(), name="stop")
            await asyncio.wait((opening, stopped), return_when=asyncio.FIRST_COMPLETED)
            opening.cancel()
            stopped.cancel()
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None  # waiting for a stop cannot fail
    return not opening.cancelled()


class OnDemand:
    """The collection as `settle` sees it: opened when there is something to delete from it."""

    def __init__(self, job: Job) -> None:
        self._job = job

    async def delete(self, ids: UInt8s) -> None:
        """Delete the points with these ids, uint8[n, 16]."""
        await (await open_sinks(self._job)).delete(ids)

    async def flush(self) -> None:
        """Make durable what was written."""
        if self._job.sinks is not None:
            await self._job.sinks.flush()
