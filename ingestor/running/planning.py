"""Which shards a run has to read, and which it can pass over."""

from __future__ import annotations

import asyncio

from ingestor.running import wiring
from ingestor.running.job import Job
from ingestor.sources.files import digest_of
from ingestor.state.identity import salt_of
from ingestor.state.ledger import Plan


async def plan_run(job: Job) -> Plan:
    """Hold the listing against what is finished."""
    options, ledger = job.options, job.ledger
    reading = salt_of(wiring.reading_of(job.settings, job.identity["record"]))
    if not options.full:
        with job.progress.doing("looking at what was touched"):
            await _accept_touched(job, reading)
    return await job.in_ledger(
        ledger.plan, job.listing.shards, reading, full=options.full, retry=options.retry
    )


async def _accept_touched(job: Job, reading: bytes) -> None:
    """Take files for finished that have other dates and the bytes that they had: hashing is far less than
    parsing.
    """
    loop, touched = asyncio.get_running_loop(), job.ledger.touched
    suspects = await job.in_ledger(touched.suspects, job.listing.shards, reading)
    digests = [loop.run_in_executor(job.unpack, digest_of, shard, job.stop.is_set) for shard, _ in suspects]
    equal = [shard for (shard, known), digest in zip(suspects, digests, strict=True) if await digest == known]
    if equal:
        await job.in_ledger(touched.accept, equal, reading)
