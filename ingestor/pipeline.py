"""One run: opens everything in order, wires the stages, accounts for every document, closes in reverse.

read ─RawBlock→ prepare ─ChunkBlock→ pack ─Batch→ prefetch ─DeviceBatch→
encode ─DeviceEmbeddings→ copy_out ─UpsertRequest→ upsert ─Applied→ settle
                   └────────────────────── Census ────────────────────┘
"""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress

from ingestor.config.settings import RunOptions, Settings
from ingestor.errors import IngestorError, WorkerDiedError
from ingestor.running import adoption, bulk, wiring
from ingestor.running.account import advise, begin_account, fill_account, warn_of_limit
from ingestor.running.dry_run import Nowhere, begin_chunks
from ingestor.running.job import Job, OpenPool, check_identity, open_job
from ingestor.running.opening import open_encoder, open_sinks, unless_stopped
from ingestor.running.passes import read_shards
from ingestor.running.planning import plan_run
from ingestor.settle import Sinks, delete_points
from ingestor.sink.pool import SinkPool
from ingestor.sink.remarks import remarks
from ingestor.sources.listing import no_shards
from ingestor.telemetry import logger
from ingestor.watching.progress import Progress
from ingestor.watching.report import Report

DELETED_AT_ONCE = 10_000
"""Documents; a stop is looked for between them."""


async def run(
    settings: Settings,
    *,
    options: RunOptions,
    stop: asyncio.Event,
    progress: Progress,
    open_pool: OpenPool = SinkPool.open,
) -> Report:
    """Bring the collection in step with the source.

    Args:
        settings: what to do.
        options: what the command line says about this one run.
        stop: set from outside to end the run early; what is packed by then is still written.
        progress: raised while the run goes on; its report holds what is known if the run fails.
        open_pool: opens the sinks; benchmarks pass one that drops what it gets.

    Raises:
        IngestorError: with the exit code that it stands for.
    """
    started = time.monotonic()
    report = progress.report
    report.target, report.collection = settings.qdrant.target, settings.qdrant.collection
    async with AsyncExitStack() as stack:
        job = await open_job(stack, settings, options, stop, progress, open_pool)
        _announce(job, report)
        _publish(stack, settings, options, progress)
        run_id = await job.in_ledger(job.ledger.start_run)
        try:
            await job.remote.until(stop, _work(job, report))
        except BaseException:
            with suppress(IngestorError):  # what ended the run counts, not that the state file fails, too
                await _close_account(job, report, run_id, time.monotonic() - started)
            raise
        await _close_account(job, report, run_id, time.monotonic() - started)
    report.seconds = time.monotonic() - started
    return report


def _publish(stack: AsyncExitStack, settings: Settings, options: RunOptions, progress: Progress) -> None:
    """Let Prometheus see the counters, where the settings ask for it."""
    port, textfile = settings.metrics.port, settings.metrics.textfile
    if (port or textfile) and not options.dry_run:
        from ingestor.watching.publish import publish

        stack.enter_context(publish(progress, port, textfile))


def _announce(job: Job, report: Report) -> None:
    """Say which collection it is, where an alias stands for it."""
    standing = job.standing
    report.collection, report.alias, report.live = (
        job.settings.qdrant.collection,
        standing.alias,
        standing.live,
    )
    if standing.alias:
        place = "live" if standing.is_live else f"to be promoted; live is {standing.live or 'nothing'}"
        logger().info("alias", name=standing.alias, collection=report.collection, text=place)


async def _close_account(job: Job, report: Report, run_id: int, seconds: float) -> None:
    await fill_account(job, report, seconds)
    try:
        report.close(tolerate=job.settings.failures.tolerate)
    finally:
        await job.in_ledger(job.ledger.end_run, run_id, report.status, report.to_json())


def kill_workers() -> None:
    """End all worker processes at once, also one that is inside a long call."""
    for child in multiprocessing.active_children():
        with suppress(ProcessLookupError):
            child.kill()


async def _work(job: Job, report: Report) -> None:
    """Plan, read what is new, sort out what left, and close the account."""
    ledger, tally, options = job.ledger, job.tally, job.options
    if job.stop.is_set():  # perhaps before all shards were listed
        report.status = "stopped"
        return
    await bulk.restore(job)
    await check_identity(job)
    if not job.listing.shards and (
        job.settings.source.sync == "append" or await job.in_ledger(ledger.is_empty)
    ):
        raise no_shards(job.settings.source.paths, job.listing)
    if options.adopt and not options.recreate and not await adoption.take_over(job):
        report.status = "stopped"
        return
    if options.recreate:
        # The last thing that may refuse the run.
        if not await unless_stopped(job, open_encoder(job, job.listing.shards)):
            report.status = "stopped"
            return
        # The ledger forgets first: the other way round, a crash between the two would hide the loss.
        await job.in_ledger(ledger.forget)
        job.identity["state"] = ledger.state_id
    plan = await plan_run(job)
    await job.in_ledger(ledger.failures.set_listing, job.listing.errors)
    begin_account(job, report, plan)
    await _look_at_target(job)
    if options.chunks and not plan.shards:
        begin_chunks(options.chunks)  # else an older file would look like this run's
    await read_shards(job, plan.shards)
    await advise(job, plan)
    warn_of_limit(job)
    if options.limit is None and not job.stop.is_set():
        await _sort_out(job, report)
        if not tally.shard_errors and not job.stop.is_set():
            await _delete_left(job, report)
    if plan.shards:
        await job.in_ledger(ledger.failures.settle)
    await bulk.finish(job)
    if job.sinks and tally.points and not job.stop.is_set():
        await _build_index(job, job.sinks)
    report.status = "stopped" if job.stop.is_set() else "complete"


async def _look_at_target(job: Job) -> None:
    """Warn, also at once, of what makes a run unsafe or a setting idle; the disk may answer slowly."""
    loop, target = asyncio.get_running_loop(), wiring.target_of(job.settings, job.spec)
    for kind, detail in await loop.run_in_executor(job.unpack, lambda: list(remarks(target))):
        logger().warning("target", kind=kind, detail=detail)
        job.tally.warn(job.settings.qdrant.collection, kind, detail)


async def _sort_out(job: Job, report: Report) -> None:
    """Settle who takes over where a winner left; the shards are read again for that alone."""
    if job.listing.shards and _held_back(job):
        if job.settings.source.sync == "mirror":
            report.documents.withheld = await job.in_ledger(job.ledger.leaving.count_gone)
    elif not job.tally.shard_errors:
        job.tally.take_over(await job.in_ledger(job.ledger.leaving.drop_gone))
        await job.in_ledger(job.ledger.failures.drop_gone)
    waiting = await job.in_ledger(job.ledger.leaving.pending_count)
    while waiting and not job.stop.is_set():
        await read_shards(job, await job.in_ledger(job.ledger.leaving.read_again, job.listing.shards))
        still = await job.in_ledger(job.ledger.leaving.pending_count)
        if still >= waiting:
            return  # what is left has no record in a finished shard
        waiting = still


def _held_back(job: Job) -> bool:
    """Whether so odd a listing may not make anything leave: perhaps a disk is not mounted."""
    odd = any(kind in ("vanished", "no_match") for _, kind, _ in job.listing.warnings)
    return odd and not job.options.allow_deletes


async def _delete_left(job: Job, report: Report) -> None:
    """Under `mirror`, delete what left the source; else say how much it is."""
    source, documents, leaving = job.settings.source, report.documents, job.ledger.leaving
    await adoption.complete(job)
    while not job.stop.is_set() and (orphans := await job.in_ledger(leaving.orphans, DELETED_AT_ONCE)):
        await _delete(job, orphans)  # half written by an interrupted run, and gone from the source since
        await job.in_ledger(leaving.forget_orphans, [id_ for id_, _ in orphans])
    count = await job.in_ledger(leaving.count_left)
    if source.sync == "append":
        documents.left = count
        return
    total = (await job.in_ledger(job.ledger.totals))[0] if count else 0
    few = job.listing.shards and count <= source.max_delete_fraction * total
    if _held_back(job) or (not few and not job.options.allow_deletes):
        documents.withheld += count
        return
    while not job.stop.is_set() and (left := await job.in_ledger(leaving.left, DELETED_AT_ONCE)):
        await _delete(job, [(id_, chunks) for _, id_, chunks in left])
        await job.in_ledger(leaving.forget_left, [place for place, _, _ in left])
        documents.deleted += len(left)


async def _delete(job: Job, documents: Sequence[tuple[str, int]]) -> None:
    """Delete all chunks of some documents; durable when it returns."""
    sinks: Sinks = Nowhere() if job.options.dry_run else await open_sinks(job)
    await delete_points(sinks, ((id_, range(chunks)) for id_, chunks in documents), job.tally)
    await sinks.flush()


async def _build_index(job: Job, sinks: SinkPool) -> None:
    """Let the embedded engine build its index; a stop ends that at once, and costs nothing but speed."""

    async def end_at_stop() -> None:
        await job.stop.wait()
        sinks.kill()

    try:
        async with asyncio.TaskGroup() as group:
            watch = group.create_task(end_at_stop(), name="watch")
            with job.progress.doing("building the search index"):
                await sinks.optimize()
            watch.cancel()
    except* WorkerDiedError:
        if not job.stop.is_set():
            raise
