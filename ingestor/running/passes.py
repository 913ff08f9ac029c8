"""The stages, wired for one pass over some shards: the picture of `pipeline` as code."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any, TypeVar

from ingestor.channel import Channel, pump
from ingestor.errors import DrainTimeoutError, IngestorError
from ingestor.prepare import prepare
from ingestor.records import Applied, Batch, Census, ChunkBlock, Shard
from ingestor.running import engine, wiring
from ingestor.running.dry_run import Nowhere, write_chunks
from ingestor.running.job import Job
from ingestor.running.opening import OnDemand, is_new, open_writing, unless_stopped
from ingestor.running.sampling import open_workers, prepare_options
from ingestor.settle import Sinks, settle
from ingestor.sources.read import read_blocks
from ingestor.watching.spans import Span

T = TypeVar("T")
Part = TypeVar("Part", ChunkBlock, Batch)

BLOCK_DEPTH = 2
PREPARED_DEPTH = 16
"""Blocks that wait before a GPU: while the ledger records, for tenths of a second, none is let through."""
EVENT_DEPTH = 32
"""Censuses and answers are small, and settle stops now and then to flush."""
SORT_WINDOW_BATCHES = 64


async def read_shards(job: Job, shards: Sequence[Shard]) -> None:
    """Read some shards and bring them to their end in collection and ledger."""
    if not shards:
        return
    if not job.options.dry_run and await is_new(job):
        # What refuses a first run does so before anything is read.
        await unless_stopped(job, open_writing(job, shards))
    await open_workers(job)
    unsettled = await Pass(job, shards).run()
    if unsettled and not job.stop.is_set():
        raise IngestorError(f"{unsettled} documents were read but never settled, which is a bug; run again")


class Pass:
    """The stages and what lies between them, for one pass over some shards."""

    def __init__(self, job: Job, shards: Sequence[Shard]) -> None:
        self._job = job
        self._shards = shards
        self._ahead = 2 * engine.prepare_processes(job.settings)
        self._enough = asyncio.Event()  # tells the reader alone: the run was stopped, or its limit is reached
        self._events: Channel[Census | Applied] = Channel(EVENT_DEPTH, producers=2)
        self._spans: dict[str, list[Span]] = {}

    async def run(self) -> int:
        """Returns how many documents are still under way at the end, none unless the run was stopped."""
        job = self._job
        sinks: Sinks = Nowhere() if job.options.dry_run else OnDemand(job)
        async with asyncio.TaskGroup() as group:
            chunk_blocks = self._read_and_prepare(group)
            if job.options.dry_run:
                self._start(
                    group,
                    "write",
                    write_chunks(self._counted(chunk_blocks), file=job.options.chunks, written=job.written),
                    chunk_blocks,
                    self._events,
                )
            else:
                group.create_task(self._embed_on_demand(group, chunk_blocks), name="embed")
            settled = group.create_task(
                settle(
                    self._taken("settle", self._events),
                    sinks=sinks,
                    ledger=job.ledger,
                    tally=job.tally,
                    window=EVENT_DEPTH + self._ahead + 2,
                ),
                name="settle",
            )
            job.progress.stages.begin("settle", self._events, None)
            watch = group.create_task(self._watch(), name="watch")
            settled.add_done_callback(lambda _: watch.cancel())
        job.progress.stages.end("settle")
        return settled.result()

    def _read_and_prepare(self, group: asyncio.TaskGroup) -> Channel[ChunkBlock]:
        job, source = self._job, self._job.settings.source
        on_gpu = job.engine.on_gpu if job.engine else engine.has_gpu(job.settings)
        blocks: Channel[Any] = Channel(BLOCK_DEPTH)
        chunk_blocks: Channel[ChunkBlock] = Channel(PREPARED_DEPTH if on_gpu else BLOCK_DEPTH)
        reading = read_blocks(
            self._shards,
            format=source.format,
            fields=wiring.fields_of(job.settings),
            block_bytes=engine.GPU_BLOCK_BYTES if on_gpu else engine.CPU_BLOCK_BYTES,
            max_line_bytes=source.max_line_bytes,
            unpack=job.unpack,
            stop=self._enough,
            remote=job.remote,
        )
        self._start(group, "read", reading, None, blocks)
        assert job.workers is not None
        preparing = prepare(
            self._taken("prepare", blocks),
            workers=job.workers,
            options=prepare_options(job),
            census=self._events,
            intend=lambda found: job.in_ledger(job.ledger.intents.note, found),
            ahead=self._ahead,
            limit=job.options.limit,
            enough=self._enough,
        )
        self._start(group, "prepare", preparing, blocks, chunk_blocks)
        return chunk_blocks

    async def _embed_on_demand(self, group: asyncio.TaskGroup, chunk_blocks: Channel[ChunkBlock]) -> None:
        """Start the stages that embed with the first chunk; without one they cost nothing, torch included."""
        async for block in chunk_blocks:
            if len(block.points) and await self._open(block):
                self._embed(group, chunk_blocks, block)
                return
        await self._events.close()

    async def _open(self, first: ChunkBlock) -> bool:
        return await unless_stopped(self._job, open_writing(self._job, self._shards, first))

    def _embed(self, group: asyncio.TaskGroup, chunk_blocks: Channel[ChunkBlock], first: ChunkBlock) -> None:
        from ingestor.copy_out import copy_out, copy_out_merged
        from ingestor.encode import encode
        from ingestor.pack import pack, pack_sorted
        from ingestor.prefetch import prefetch
        from ingestor.sink.upsert import upsert

        job, opened, stop = self._job, self._job.engine, self._job.stop
        assert opened is not None
        assert job.sinks is not None
        device, buffers, budget = opened.device, opened.buffers, opened.token_budget
        rows = buffers.layout.rows
        batches: Channel[Any] = Channel(BLOCK_DEPTH)
        on_device: Channel[Any] = Channel(BLOCK_DEPTH)
        embeddings: Channel[Any] = Channel(BLOCK_DEPTH)
        requests: Channel[Any] = Channel(BLOCK_DEPTH)
        job.progress.stages.watch("slots", buffers)
        taken = chain(first, self._taken("pack", chunk_blocks))
        packing = (
            pack(taken, token_budget=budget, max_rows=rows, stop=stop)
            if opened.encoder.packed
            else pack_sorted(
                taken,
                token_budget=budget,
                max_rows=rows,
                window_tokens=SORT_WINDOW_BATCHES * budget,
                stop=stop,
            )
        )
        vectors = self._taken("copy_out", embeddings)
        copying = (
            copy_out(vectors, buffers=buffers, device=device)
            if opened.on_gpu
            else copy_out_merged(vectors, buffers=buffers)
        )
        self._start(group, "pack", packing, chunk_blocks, batches)
        fetching = prefetch(self._counted(self._taken("prefetch", batches)), device=device)
        encoding = encode(self._taken("encode", on_device), encoder=opened.encoder, device=device)
        upserting = upsert(self._taken("upsert", requests), sinks=job.sinks, buffers=buffers)
        self._start(group, "prefetch", fetching, batches, on_device)
        self._start(group, "encode", encoding, on_device, embeddings)
        self._start(group, "copy_out", copying, embeddings, requests)
        self._start(group, "upsert", upserting, requests, self._events)

    async def _counted(self, parts: AsyncIterator[Part]) -> AsyncGenerator[Part, None]:
        """Count what goes on to the encoder, which a stop does not drop any more."""
        opened = self._job.engine
        packed = opened is None or opened.encoder.packed
        timeline = self._job.progress.timeline
        async for part in parts:
            self._job.tally.encode(part, packed=packed)
            if timeline:
                timeline.batch()
            yield part

    def _taken(self, name: str, source: AsyncIterator[T]) -> AsyncIterator[T]:
        """What a stage takes, seen on its way by who wants to know when it works."""
        for span in self._spans_of(name):
            source = span.source(source)
        return source

    def _spans_of(self, name: str) -> list[Span]:
        recorders = (self._job.profile, self._job.progress.timeline)
        return self._spans.setdefault(name, [found.span(name) for found in recorders if found])

    def _start(
        self,
        group: asyncio.TaskGroup,
        name: str,
        stage: AsyncGenerator[T, None],
        source: Channel[Any] | None,
        out: Channel[T],
    ) -> None:
        stages = self._job.progress.stages
        stages.begin(name, source, None if out is self._events else out)
        for span in self._spans_of(name):
            stage = span.stage(stage)

        async def timed() -> None:
            await pump(stage, out)
            stages.end(name)

        group.create_task(timed(), name=name)

    async def _watch(self) -> None:
        """Pass a stop on to the reader, and end the run if what is packed cannot be written in time."""
        await self._job.stop.wait()
        self._job.progress.note = "stopping: what is packed is still written"
        self._enough.set()
        await asyncio.sleep(self._job.options.drain_timeout_s)
        if self._job.sinks is not None:
            self._job.sinks.kill()  # else closing them would wait for the call that they are in
        raise DrainTimeoutError(
            "stopped: what was packed could not be written in time; run again to complete it"
        )


async def chain(first: T, rest: AsyncIterator[T]) -> AsyncGenerator[T, None]:
    """What was taken already, and then the rest."""
    yield first
    async for item in rest:
        yield item
