"""Reads shards to the end, for tests of the sources."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from ingestor.records import Document, Failure, RawBlock, Shard, ShardEnd, Skipped
from ingestor.sources import Fields, documents
from ingestor.sources.listing import list_shards
from ingestor.sources.read import read_blocks
from ingestor.sources.remote import Remote
from ingestor.sources.stores import Patience

QUICK = Patience(connect_s=2, read_s=0.5, tries=3, total_s=5)
FIELDS = Fields(text=("text",), id="id", id_scope="collection", metadata=())


async def read_shards(
    shards: Sequence[Shard],
    *,
    format: str = "auto",  # noqa: A002
    fields: Fields = FIELDS,
    block_bytes: int = 1 << 18,
    max_line_bytes: int = 1 << 26,
    ahead: int = 4,
    remote: Remote | None = None,
) -> list[RawBlock]:
    """All blocks of these shards."""
    async with asyncio.timeout(60):
        with ThreadPoolExecutor(2) as unpack:
            blocks = read_blocks(
                shards,
                format=format,
                fields=fields,
                block_bytes=block_bytes,
                max_line_bytes=max_line_bytes,
                unpack=unpack,
                stop=asyncio.Event(),
                remote=remote,
                ahead=ahead,
            )
            return [block async for block in blocks]


@dataclass
class Reading:
    """What came of reading some paths."""

    documents: list[Document] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    ends: dict[str, ShardEnd] = field(default_factory=dict)
    warnings: list[tuple[str, str, str]] = field(default_factory=list)

    @property
    def ids(self) -> list[str]:
        return [document.id for document in self.documents]

    @property
    def kinds(self) -> list[str]:
        return [failure.kind for failure in self.failures]


async def read_paths(
    *paths: object,
    fields: Fields = FIELDS,
    format: str = "auto",  # noqa: A002
    block_bytes: int = 1 << 18,
    max_line_bytes: int = 1 << 26,
    patience: Patience = QUICK,
) -> Reading:
    """List, read and parse."""
    with Remote(patience) as remote:
        listing = await asyncio.to_thread(list_shards, [str(path) for path in paths], None, remote)
        blocks = await read_shards(
            listing.shards,
            format=format,
            fields=fields,
            block_bytes=block_bytes,
            max_line_bytes=max_line_bytes,
            remote=remote,
        )
    reading = Reading(warnings=listing.warnings)
    for block in blocks:
        reading.failures += block.failures
        if block.end:
            reading.ends[block.shard.name] = block.end
        for record in documents(block, fields):
            if isinstance(record, Document):
                reading.documents.append(record)
            elif isinstance(record, Failure):
                reading.failures.append(record)
            else:
                reading.skipped.append(record)
    return reading
