"""One run: opens everything in order, wires the stages, accounts for every document, closes in reverse.

read ─RawBlock→ prepare ─ChunkBlock→ pack ─Batch→ prefetch ─DeviceBatch→
encode ─DeviceEmbeddings→ copy_out ─UpsertRequest→ upsert ─Applied→ settle
                   └────────────────────── Census ────────────────────┘
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress

from ingestor.account import begin_account, fill_account
from ingestor.config import RunOptions, Settings
from ingestor.dry_run import Nowhere
from ingestor.errors import ConfigError, WorkerDiedError
from ingestor.identity import salt_of
from ingestor.job import Job, OpenPool, check_identity, open_job, open_sinks
from ingestor.passes import read_shards
from ingestor.report import Report
from ingestor.settle import Sinks, delete_points
from ingestor.sink.pool import SinkPool
from ingestor.telemetry import Progress


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
        run_id = await job.in_ledger(job.ledger.start_run)
        try:
            await _work(job, report)
        finally:
            await fill_account(job, report, time.monotonic() - started)
            await job.in_ledger(job.ledger.end_run, run_id, report.status, report.to_json())
    report.seconds = time.monotonic() - started
    return report


def kill_workers() -> None:
    """End all worker processes at once, also one that is inside a long call."""
    for child in multiprocessing.active_children():
        with suppress(ProcessLookupError):
            os.kill(child.pid or 0, signal.SIGKILL)


async def _work(job: Job, report: Report) -> None:
    """Plan, read what is new, sort out what left, and close the account."""
    ledger, tally, options = job.ledger, job.tally, job.options
    await check_identity(job)
    if not job.listing.shards and not (
        job.settings.source.sync == "mirror" and (await job.in_ledger(ledger.totals))[0]
    ):
        raise ConfigError(f"source.paths: no shard matches {', '.join(job.settings.source.paths)}")
    salt = salt_of(job.identity["record"])
    plan = await job.in_ledger(ledger.plan, job.listing.shards, salt, full=options.full)
    begin_account(job, report, plan)
    await read_shards(job, plan.shards)
    whole = not job.stop.is_set() and options.limit is None
    if whole:
        await _sort_out(job)
        if not tally.shard_errors:
            await _delete_left(job, report)
    if job.sinks and tally.points:
        await _build_index(job, job.sinks)
    report.status = "stopped" if job.stop.is_set() else "complete"


async def _sort_out(job: Job) -> None:
    """Settle who takes over where a winner left; the shards are read again for that alone."""
    missing = any(kind == "vanished" for _, kind, _ in job.listing.warnings)  # a disk that is not mounted?
    if not job.tally.shard_errors and not missing:
        await job.in_ledger(job.ledger.drop_gone)
    waiting = await job.in_ledger(job.ledger.pending_count)
    while waiting and not job.stop.is_set():
        await read_shards(job, await job.in_ledger(job.ledger.read_again, job.listing.shards))
        still = await job.in_ledger(job.ledger.pending_count)
        if still >= waiting:
            return  # what is left has no record in a finished shard
        waiting = still


async def _delete_left(job: Job, report: Report) -> None:
    """Under `mirror`, delete what left the source; else say how much it is."""
    source, documents = job.settings.source, report.documents
    orphans = await job.in_ledger(job.ledger.orphans)
    if orphans:  # half written by an interrupted run, and gone from the source since
        await _delete(job, orphans)
        await job.in_ledger(job.ledger.forget_orphans, [id_ for id_, _ in orphans])
    left = await job.in_ledger(job.ledger.left)
    if source.sync == "append":
        documents.left = len(left)
        return
    total = (await job.in_ledger(job.ledger.totals))[0]
    allowed = job.options.allow_deletes or (
        job.listing.shards and len(left) <= source.max_delete_fraction * total
    )
    if not left:
        return
    if not allowed:
        documents.withheld = len(left)
        return
    await _delete(job, [(id_, chunks) for _, id_, chunks in left])
    await job.in_ledger(job.ledger.forget_left, [place for place, _, _ in left])
    documents.deleted = len(left)


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

    job.progress.note = "building the search index"
    try:
        async with asyncio.TaskGroup() as group:
            watch = group.create_task(end_at_stop(), name="watch")
            await sinks.optimize()
            watch.cancel()
    except* WorkerDiedError:
        if not job.stop.is_set():
            raise
