"""From what was counted to the report."""

from __future__ import annotations

from contextlib import aclosing

from ingestor.running.job import Job
from ingestor.running.sampling import beginnings
from ingestor.sources.advice import OF_FIELDS, on_fields
from ingestor.state.ledger import Plan
from ingestor.watching.report import LIMITED, NO_DOCUMENT, Refused, Remark, Report
from ingestor.watching.tally import WARNINGS_KEPT


def begin_account(job: Job, report: Report, plan: Plan) -> None:
    """What is known before anything is read: the documents of shards that are passed over."""
    tally = job.tally
    report.shards.seen, report.shards.unchanged = len(job.listing.shards), plan.unchanged
    failed = sum(plan.failed.values())
    tally.read = plan.held + plan.lost + failed
    tally.unchanged, tally.duplicates, tally.failed = plan.held, plan.lost, failed
    tally.rejected.update(plan.failed)
    tally.shard_errors += job.listing.errors
    for warning in job.listing.warnings:
        if warning not in job.listing.errors:
            tally.warn(*warning)
    job.progress.limit, job.progress.passed = job.options.limit, tally.read
    job.progress.shards_total = len(plan.shards)
    job.progress.bytes_total = sum(shard.size for shard in plan.shards)


def warn_of_limit(job: Job) -> None:
    """Say that the run read no further than `--limit`."""
    progress = job.progress
    if progress.limit is not None and job.tally.read - progress.passed >= progress.limit:
        job.warn(LIMITED, [f"limited to {progress.limit:,} documents; run without --limit for the rest"])


async def advise(job: Job, plan: Plan) -> None:
    """Warn where not one record became a document, and the settings name fields that are not there."""
    tally = job.tally
    if tally.read or not tally.refused or OF_FIELDS.isdisjoint(tally.rejected):
        return
    name = tally.refused[0].shard
    async with aclosing(beginnings(job, [shard for shard in plan.shards if shard.name == name])) as blocks:
        first = await anext(blocks, None)
    tally.warn(name, NO_DOCUMENT, f"not one record became a document; {on_fields(tally.rejected, first)}")


async def fill_account(job: Job, report: Report, seconds: float) -> None:
    """Bring the tally into the report, at the end of a run or where it broke off."""
    tally, documents = job.tally, report.documents
    documents.read, documents.unchanged = tally.read, tally.unchanged
    documents.duplicates, documents.failed = tally.duplicates, tally.failed
    documents.skipped, documents.rejected = tally.skipped.total(), tally.rejected_records
    report.dry_run = job.options.dry_run
    if report.dry_run:
        documents.would_index = tally.indexed
    else:
        documents.indexed = tally.indexed
        report.chunks.embedded, report.points.upserted = tally.chunks, tally.points
    report.points.deleted, report.tokens.embedded = tally.points_deleted, tally.tokens
    report.rejected_by_kind, report.skipped_by_kind = dict(tally.rejected), dict(tally.skipped)
    report.shard_errors = [Remark(*error) for error in tally.shard_errors]
    report.warnings = [Remark(*warning) for warning in tally.warnings]
    report.warnings += [
        Remark(shard, kind, f"and {count - WARNINGS_KEPT:,} more of this kind")
        for (shard, kind), count in tally.warned.items()
        if count > WARNINGS_KEPT
    ]
    if job.sinks is not None:
        target = job.settings.qdrant.collection
        report.warnings += [Remark(target, kind, detail) for kind, detail in job.sinks.waits.remarks()]
    report.refused = [Refused(f.shard, f.place, f.kind, f.detail, f.document) for f in tally.refused]
    report.shards.failed = len({shard for shard, _, _ in tally.shard_errors})
    report.replaced_characters, report.seconds = tally.replaced_characters, seconds
    report.stages = job.progress.stages.times()
    report.failures_open = await job.in_ledger(job.ledger.failures.count)
    wrong = {found.shard for found in report.refused}
    wrong |= {found.shard for found in report.shard_errors + report.warnings}
    job.progress.paths = {shard.name: shard.path for shard in job.listing.shards if shard.name in wrong}
    job.progress.accounted = True
