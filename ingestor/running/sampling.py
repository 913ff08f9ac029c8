"""Some chunks of what a run will read, before it does: to judge an encoder by, and to fit one to."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import aclosing
from dataclasses import replace

from ingestor.encoding.calibration import spread
from ingestor.prepare import PROCESS, prepare_block
from ingestor.preparing.preparer import PrepareOptions
from ingestor.records import ChunkBlock, Int32s, RawBlock, Shard, chunks_of
from ingestor.running import engine, wiring
from ingestor.running.job import Job
from ingestor.sources.read import read_blocks
from ingestor.worker import answer, submit

CHUNKS = 256
BLOCKS = 16
BLOCK_BYTES = 64 << 10


async def take(job: Job, shards: Sequence[Shard], first: ChunkBlock | None) -> list[Int32s]:
    """The tokens of some chunks: of the first block of new ones, else of the beginnings of some shards."""
    if first is not None:
        return spread(chunks_of(first), CHUNKS)
    found: list[Int32s] = []
    workers = await open_workers(job)
    options = replace(prepare_options(job), full=True)
    async with aclosing(beginnings(job, shards)) as blocks:
        async for block in blocks:
            _, chunks = await answer(workers, submit(workers, prepare_block, options, block, None), PROCESS)
            found += chunks_of(chunks)
    return spread(found, CHUNKS)


async def beginnings(job: Job, shards: Sequence[Shard]) -> AsyncGenerator[RawBlock, None]:
    """The first blocks of some shards, spread over all; fewer shards give more of each."""
    chosen = spread(shards, BLOCKS)
    source, most = job.settings.source, BLOCKS // max(1, len(chosen))
    for shard in chosen:
        reading = read_blocks(
            [shard],
            format=source.format,
            fields=wiring.fields_of(job.settings),
            block_bytes=BLOCK_BYTES,
            max_line_bytes=source.max_line_bytes,
            unpack=job.unpack,
            stop=job.stop,
            remote=job.remote,
        )
        async with aclosing(reading) as blocks:
            left = most
            async for block in blocks:
                yield block
                left -= 1
                if not left:
                    break


async def open_workers(job: Job) -> ProcessPoolExecutor:
    """The prepare processes, started once."""
    if job.workers is None:
        job.workers = await engine.open_workers(job.stack, engine.prepare_processes(job.settings))
    return job.workers


def prepare_options(job: Job) -> PrepareOptions:
    """What the prepare processes need to know."""
    found = replace(wiring.prepare_options(job.settings, job.spec, job.state), full=job.options.full)
    return replace(found, framing="json", keep_losers=True) if job.options.dry_run else found
