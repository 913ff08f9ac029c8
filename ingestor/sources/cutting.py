"""Cuts a stream of bytes into blocks of whole records."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from ingestor.errors import SourceError
from ingestor.records import Failure, ShardEnd


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes in unpacked bytes: what a block aims at, and what a single record may have."""

    block_bytes: int
    max_record_bytes: int


@dataclass(frozen=True, slots=True)
class Cut:
    """Whole records, and those that had to be refused since the last cut.

    Attributes:
        place: of the first record, from 1.
        offset: of `data` in the unpacked shard, in bytes.
        data: the records, each with its end.
        failures: what was refused.
        taken: bytes of the file, as it lies on disk, up to here; 0: all that were pushed.
    """

    place: int
    offset: int
    data: bytes
    failures: tuple[Failure, ...] = ()
    taken: int = 0


class Splitter(Protocol):
    """What a format makes of a shard's unpacked bytes."""

    def push(self, data: bytes) -> Iterator[Cut]:
        """Take bytes in, give the blocks that are full; raises SourceError."""

    def finish(self, *, packed: bool, broken: SourceError | None) -> tuple[list[Cut], ShardEnd]:
        """Give what is left, and how the shard ended.

        Args:
            packed: the shard was compressed; then nobody is still writing its last record.
            broken: what broke the shard off, if something did.
        """


def shard_end(broken: SourceError | None) -> ShardEnd:
    """The end of a shard that was read to its end, or that broke off."""
    return ShardEnd(broken is None, ((broken.kind, broken.detail),) if broken else ())


def too_long(shard: str, place: int, size: int, limits: Limits, offset: int | None = None) -> Failure:
    """A record of `size` bytes, which are too many."""
    detail = f"{size:,} bytes, more than max_line_bytes ({limits.max_record_bytes:,})"
    return Failure(shard, place, "line_too_long", detail, offset=offset)


class Cutter:
    """Cuts after a record's end, keeping every byte in order; holds no more than one block or one record.

    Args:
        shard: its name, for failures.
        end: the bytes that end a record.
        limits: a record of more than `max_record_bytes` is dropped as it comes in: `line_too_long`.
        place: of the first record.
        offset: of the first record, in bytes.
    """

    def __init__(self, shard: str, end: bytes, limits: Limits, place: int = 1, offset: int = 0) -> None:
        self._shard = shard
        self._end = end
        self._limits = limits
        self._held = bytearray()
        self._searched = 0  # no record ends before this position of `_held`
        self._dropped = 0  # bytes gone of the over-long record that is passing by
        self._place = place
        self._offset = offset
        self._failures: list[Failure] = []

    def push(self, data: bytes) -> Iterator[Cut]:
        """Take bytes in and give the blocks that are full."""
        self._held += data
        while not self._dropped or self._pass_by():
            if not (size := self._full_block()):
                break
            yield from self._take(size)
        longest = self._limits.max_record_bytes + len(self._end) - 1  # its end may have come in part
        if len(self._held) > max(longest, self._limits.block_bytes):
            self._drop()

    def tail(self) -> bytes:
        """What follows the last end of a record; nothing where that is over-long already."""
        tail = bytes(self._held[self._whole() :])
        return b"" if self._dropped or len(tail) > self._limits.max_record_bytes else tail

    def finish(self, *, keep_tail: bool) -> list[Cut]:
        """Give all that is left; the tail is a record too, or it is left out."""
        if self._dropped or len(self._held) - self._whole() > self._limits.max_record_bytes:
            cuts = list(self._take(self._whole()))
            self._refuse(self._dropped + len(self._held))
        else:
            cuts = list(self._take(len(self._held) if keep_tail else self._whole()))
        self._held.clear()
        return [*cuts, self._cut(0)] if self._failures else cuts

    def _whole(self) -> int:
        return self._held.rfind(self._end) + len(self._end) if self._end in self._held else 0

    def _full_block(self) -> int:
        """Bytes of a block's worth of records, or of one larger record; 0 while there is none."""
        held, block_bytes = self._held, self._limits.block_bytes
        if len(held) < block_bytes:
            return 0
        at = held.rfind(self._end, self._searched, block_bytes)
        if at < 0:
            at = held.find(self._end, max(self._searched, block_bytes - len(self._end) + 1))
        self._searched = max(0, len(held) - len(self._end) + 1) if at < 0 else 0
        return at + len(self._end) if at >= 0 else 0

    def _take(self, size: int) -> Iterator[Cut]:
        """Cut off the first `size` bytes, over-long records among them left out."""
        limit = self._limits.max_record_bytes + len(self._end)
        at = 0
        while size - at > limit:
            near = self._held.rfind(self._end, at, at + limit)
            if near >= 0:
                at = near + len(self._end)
                continue
            if at:
                yield self._cut(at)
            over_long = self._held.find(self._end) + len(self._end)
            self._refuse(over_long)
            del self._held[:over_long]
            size, at = size - at - over_long, 0
        if size:
            yield self._cut(size)

    def _cut(self, size: int) -> Cut:
        data = bytes(memoryview(self._held)[:size])
        cut = Cut(self._place, self._offset, data, tuple(self._failures))
        del self._held[:size]
        self._place += data.count(self._end)
        self._offset += size
        self._failures.clear()
        return cut

    def _drop(self) -> None:
        """Forget what is held of an over-long record, but for what may be the beginning of its end."""
        gone = len(self._held) - len(self._end) + 1
        del self._held[:gone]
        self._dropped += gone
        self._searched = 0

    def _pass_by(self) -> bool:
        """Drop more of the over-long record; True when its end has come."""
        at = self._held.find(self._end)
        if at < 0:
            self._drop()
            return False
        over_long = at + len(self._end)
        self._refuse(self._dropped + over_long)
        del self._held[:over_long]
        self._dropped = 0
        return True

    def _refuse(self, size: int) -> None:
        self._failures.append(too_long(self._shard, self._place, size, self._limits, self._offset))
        self._place += 1
        self._offset += size
