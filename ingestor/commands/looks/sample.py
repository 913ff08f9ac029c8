"""The beginnings of some shards, read, parsed and cut as a run would do it, in this process."""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, closing
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ingestor.config.settings import Settings
from ingestor.encoding.model import ModelSpec
from ingestor.preparing.preparer import Preparer
from ingestor.records import (
    Census,
    ChunkBlock,
    Document,
    Failure,
    Int32s,
    RawBlock,
    Shard,
    ShardEnd,
    Verdict,
    chunks_of,
)
from ingestor.running import wiring
from ingestor.sources import documents
from ingestor.sources.fields import MISSING, Fields, find
from ingestor.sources.read import read_blocks
from ingestor.sources.remote import Remote
from ingestor.state.file import SCHEMA

SHARDS, BLOCKS = 24, 8
"""Of a few shards several blocks are looked at, of many one each."""
BLOCK_BYTES = 64 << 10
ENOUGH_S = 20.0
"""Slow disks show less of the source."""


@dataclass(slots=True)
class Sample:
    """What the first blocks of some shards hold.

    Attributes:
        shards: that were looked at.
        formats: of them.
        read: bytes of them on disk that these blocks stand for.
        documents: that could be embedded.
        chunks: the tokens of each of their chunks.
        payload_bytes: of all chunks.
        metadata: those of `source.metadata_fields` that some document has.
        failures, warnings, errors: what was refused, what people should know, what broke shards off.
    """

    shards: int = 0
    formats: Counter[str] = field(default_factory=Counter)
    read: float = 0.0
    documents: int = 0
    duplicates: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    chunks: list[Int32s] = field(default_factory=list)
    payload_bytes: int = 0
    metadata: set[str] = field(default_factory=set)
    failures: list[Failure] = field(default_factory=list)
    warnings: list[tuple[str, str, str]] = field(default_factory=list)
    errors: list[tuple[str, str, str]] = field(default_factory=list)
    first: RawBlock | None = None

    @property
    def tokens(self) -> int:
        return sum(len(ids) for ids in self.chunks)

    def add(self, block: RawBlock, found: Census, chunks: ChunkBlock) -> None:
        """Count a block."""
        name = block.shard.name
        self.first = self.first or block
        self.documents += int(np.count_nonzero(found.verdicts == Verdict.NEW))
        self.duplicates += int(np.count_nonzero(found.verdicts == Verdict.DUPLICATE))
        self.skipped.update(found.skipped)
        self.chunks += chunks_of(chunks)
        self.payload_bytes += sum(map(len, chunks.points.payloads))
        self.failures += found.failures
        self.warnings += [(name, kind, detail) for kind, detail in found.warnings]

    def look_for(self, block: RawBlock, fields: Fields) -> None:
        """Note which metadata the block's documents have."""
        if lacking := set(fields.metadata or ()) - self.metadata:
            for found in documents(block, fields):
                if isinstance(found, Document):
                    self.metadata |= {path for path in lacking if find(found.payload, path) is not MISSING}

    def end(self, shard: Shard, end: ShardEnd) -> None:
        """Note how a shard ended that is small enough."""
        self.errors += [(shard.name, kind, detail) for kind, detail in end.errors]
        self.warnings += [(shard.name, kind, detail) for kind, detail in end.warnings]


def take(settings: Settings, spec: ModelSpec, shards: Sequence[Shard], remote: Remote) -> Sample:
    """Read the beginnings of some shards, spread over all; takes seconds.

    Raises:
        ConfigError, ModelError: documents could not be cut in this way.
    """
    chosen = [shards[row] for row in np.unique(np.linspace(0, len(shards) - 1, SHARDS).round().astype(int))]
    most = max(1, BLOCKS // len(chosen))
    sample, until = Sample(), time.monotonic() + ENOUGH_S
    with tempfile.TemporaryDirectory(prefix="ingestor-") as folder:
        ledger = Path(folder, "state.sqlite3")
        with closing(sqlite3.connect(ledger)) as empty:
            empty.executescript(SCHEMA)
        preparer = Preparer(wiring.prepare_options(settings, spec, ledger))
        for shard in chosen:
            blocks, read, end = asyncio.run(_beginning(settings, shard, remote, most=most))
            sample.shards += 1
            sample.read += read
            sample.formats[blocks[0].format] += 1
            for block in blocks:
                sample.add(block, *preparer.prepare(block, None))
                sample.look_for(block, wiring.fields_of(settings))
            if end is not None:
                sample.end(shard, end)
            if time.monotonic() > until:
                break
    return sample


async def _beginning(
    settings: Settings, shard: Shard, remote: Remote, *, most: int
) -> tuple[list[RawBlock], float, ShardEnd | None]:
    """A shard's first blocks, how many bytes on disk they stand for, and its end if that was near.

    The bytes are their share of what was unpacked of the file's first piece.
    """
    source = settings.source
    with ThreadPoolExecutor(1, "unpack") as unpack:
        reading = read_blocks(
            [shard],
            format=source.format,
            fields=wiring.fields_of(settings),
            block_bytes=BLOCK_BYTES,
            max_line_bytes=source.max_line_bytes,
            unpack=unpack,
            stop=asyncio.Event(),
            remote=remote,
            ahead=1,
        )
        found: list[RawBlock] = []
        unpacked, taken, end = 0, 0, None
        async with aclosing(reading) as blocks:
            async for block in blocks:
                if len(found) >= most and block.taken and not block.end:
                    break  # the next piece
                found += [block] * (len(found) < most)
                unpacked += len(block.data)
                taken, end = taken + block.taken, block.end
    return found, taken * sum(len(block.data) for block in found) / max(unpacked, 1), end
