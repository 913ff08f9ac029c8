"""What takes the place of encoder, sinks and state when a run only reads, chunks and counts."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import closing
from pathlib import Path

import numpy as np
import orjson

from ingestor.errors import naming
from ingestor.records import Applied, ChunkBlock, UInt8s
from ingestor.state.file import NO_ROOM, open_to_read, state_error

_OWN_FIELDS = ("document", "chunk", "chunks", "text")


class Nowhere:
    """Sinks that hold nothing."""

    async def delete(self, ids: UInt8s) -> None:
        pass

    async def flush(self) -> None:
        pass


def begin_chunks(file: Path) -> None:
    """Empty the file, or make it."""
    with naming(file):
        file.write_bytes(b"")


async def write_chunks(
    blocks: AsyncIterator[ChunkBlock], *, file: Path | None, written: set[str]
) -> AsyncGenerator[Applied, None]:
    """Write each chunk as a JSON line, in reading order, and take it for stored.

    Args:
        file: None writes nothing.
        written: shards that earlier passes of this run wrote, losers included; this one's are added.
    """
    earlier = frozenset(written)
    path = file or Path(os.devnull)
    with naming(path), path.open("ab" if earlier else "wb") as out:
        async for block in blocks:
            written.add(block.shard)
            if file and block.shard not in earlier:
                await asyncio.to_thread(out.write, _lines(block))
            yield Applied(block.points.documents)


def _lines(block: ChunkBlock) -> bytes:
    tokens = np.diff(block.offsets).tolist()
    lines = []
    for payload, count in zip(block.points.payloads, tokens, strict=True):
        metadata = orjson.loads(payload)
        own = {name: metadata.pop(name) for name in _OWN_FIELDS}
        lines.append(
            orjson.dumps({**own, "tokens": count, "shard": block.shard, "payload": metadata}) + b"\n"
        )
    return b"".join(lines)


def copy_state(state: Path, copy: Path) -> None:
    """Copy the state file, if there is one, so that what a dry run remembers is forgotten with the copy.

    Raises:
        ConfigError, ResourceError: it is no state file, or cannot be read.
    """
    if state.exists():
        try:
            with closing(open_to_read(state)) as source, closing(sqlite3.connect(copy)) as target:
                source.backup(target)
        except sqlite3.DatabaseError as error:
            full = getattr(error, "sqlite_errorcode", None) in NO_ROOM  # only the copy is written
            raise state_error(copy if full else state, error) from error
