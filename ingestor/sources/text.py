"""Plain text: one document a file."""

from __future__ import annotations

from collections.abc import Iterator

from ingestor.errors import SourceError
from ingestor.records import Document, Failure, RawBlock, ShardEnd, Skipped
from ingestor.sources.cutting import Cut, Limits, shard_end, too_long
from ingestor.sources.fields import Fields
from ingestor.sources.values import VISIBLE


class WholeFile:
    """A `Splitter` that keeps the file together; holds it, up to the limit of a record."""

    def __init__(self, shard: str, limits: Limits, fields: Fields) -> None:
        self._shard = shard
        self._limits = limits
        self._held = bytearray()
        self._size = 0

    def push(self, data: bytes) -> Iterator[Cut]:
        self._size += len(data)
        if self._size <= self._limits.max_record_bytes:
            self._held += data
        else:
            self._held.clear()
        return iter(())

    def finish(self, *, packed: bool, broken: SourceError | None) -> tuple[list[Cut], ShardEnd]:
        end = shard_end(broken)
        if broken or not self._size:
            return [], end
        failures: tuple[Failure, ...] = ()
        if self._size > self._limits.max_record_bytes:
            failures = (too_long(self._shard, 1, self._size, self._limits, 0),)
        return [Cut(1, 0, bytes(self._held), failures)], end


splitter = WholeFile


def documents(block: RawBlock, fields: Fields) -> Iterator[Document | Failure | Skipped]:
    """The file as one document, whose id is the shard's name; there is no metadata."""
    if not block.data:
        return
    name = block.shard.name
    try:
        text = block.data.decode()
        nul = block.data.find(b"\0")
    except UnicodeDecodeError as error:
        text, nul = "", error.start
    if nul >= 0:
        detail = f"{name}: byte {nul + 1} (0x{block.data[nul]:02x}) is no UTF-8 text"
        yield Failure(name, block.place, "bad_encoding", detail, name, nul)
    elif not VISIBLE.search(text):
        yield Failure(name, block.place, "empty_text", "nothing to embed", name)
    else:
        yield Document(name, text, {}, block.place)


def prose(text: str) -> str:
    """The text is prose already."""
    return text
