"""Finds where rows end whose cells may be quoted: a line end within quotes is part of the cell.

A cell is quoted where a quote is its first character, and two quotes within are one, as the csv module has
it; any other quote is a character. So whether a line end counts is known only from the row's beginning on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ingestor.records import Failure
from ingestor.sources.cutting import Cut, Limits, too_long

CELL = rb'(?:"(?:[^"]++|"")*+"[^,\n]*+|(?!")[^,\n]*+)'
ROW = re.compile(CELL + rb"(?:," + CELL + rb")*+\n")
ROWS = re.compile(rb"(?:" + CELL + rb"(?:," + CELL + rb")*+\n)*+")
WHOLE = re.compile(CELL + rb"(?:," + CELL + rb")*+\Z")
QUOTED = re.compile(rb'(?:[^"]++|"")*+')
UNQUOTED = re.compile(rb'[^,\n]*+(?:,(?=[^"])[^,\n]*+)*+')


def row_bytes(data: bytes) -> int:
    """The length of the first row with its line end; 0 where that is not there."""
    row = ROW.match(data)
    return row.end() if row else 0


class QuotedCutter:
    """Cuts behind rows, as `Cutter` does behind lines; places are lines.

    Args:
        shard: its name, for failures.
        limits: a row of more than `max_record_bytes` is dropped as it comes in: `line_too_long`.
        place: line of the first row.
        offset: of the first row, in bytes.
    """

    def __init__(self, shard: str, limits: Limits, place: int, offset: int) -> None:
        self._shard = shard
        self._limits = limits
        self._held = bytearray()  # begins with a row, but for the rest of an over-long one
        self._window = self._least = min(limits.block_bytes, limits.max_record_bytes + 1)
        self._place = place
        self._offset = offset
        self._dropped: _Dropped | None = None  # the over-long row that is passing by
        self._failures: list[Failure] = []

    def push(self, data: bytes) -> Iterator[Cut]:
        """Take bytes in and give the blocks that are full."""
        self._held += data
        while self._dropped is None or self._pass_by():
            if len(self._held) < self._window:
                return
            if size := self._whole(self._window):
                self._window = self._least
                yield self._cut(size)
            elif self._window > self._limits.max_record_bytes:
                self._dropped = _Dropped()
            else:  # look again when there is twice as much: no byte is looked at more than twice or so
                self._window = min(2 * self._window, self._limits.max_record_bytes + 1)

    def tail(self) -> bytes:
        """What follows the last whole row; nothing where that is over-long already."""
        return b"" if self._dropped else bytes(self._held[self._whole(len(self._held)) :])

    def finish(self, *, keep_tail: bool) -> list[Cut]:
        """Give all that is left; the tail is a row too, or it is left out.

        A tail that ends within quotes is refused, as nobody knows what it has swallowed.
        """
        if self._dropped:
            self._refuse_dropped(len(self._held))
            return [self._cut(0)]
        size = self._whole(len(self._held))
        tail = bytes(self._held[size:]) if keep_tail else b""
        if tail and WHOLE.match(tail):
            size += len(tail)
        cuts = [self._cut(size)] if size or self._failures else []
        if tail and not WHOLE.match(tail):
            detail = f"the quote is never closed; {len(tail):,} bytes follow in {tail.count(10) + 1:,} lines"
            self._failures.append(Failure(self._shard, self._place, "bad_row", detail, offset=self._offset))
            cuts.append(self._cut(0))
        self._held.clear()
        return cuts

    def _whole(self, stop: int) -> int:
        """The length of all whole rows that end before `stop`."""
        quote = self._held.find(b'"', 0, stop)
        start = self._held.rfind(b"\n", 0, stop if quote < 0 else quote) + 1
        if quote < 0:
            return start
        rows = ROWS.match(self._held, start, stop)
        return rows.end() if rows else start

    def _cut(self, size: int) -> Cut:
        data = bytes(memoryview(self._held)[:size])
        cut = Cut(self._place, self._offset, data, tuple(self._failures))
        self._failures.clear()
        self._forget(size)
        return cut

    def _forget(self, size: int) -> None:
        self._place += self._held.count(b"\n", 0, size)
        self._offset += size
        del self._held[:size]

    def _pass_by(self) -> bool:
        """Drop more of the over-long row; True when its end has come."""
        assert self._dropped is not None
        size, ended = self._dropped.pass_by(self._held)
        if ended:
            self._refuse_dropped(size)
            self._window = self._least
            self._dropped = None
        else:
            self._dropped.size += size
            self._dropped.lines += self._held.count(b"\n", 0, size)
            del self._held[:size]
        return ended

    def _refuse_dropped(self, size: int) -> None:
        """Refuse the over-long row, of which the first `size` bytes that are held are the rest."""
        assert self._dropped is not None
        total = self._dropped.size + size
        self._failures.append(too_long(self._shard, self._place, total, self._limits, self._offset))
        self._place += self._dropped.lines
        self._offset += self._dropped.size
        self._forget(size)


class _Dropped:
    """How far into an over-long row we are.

    Attributes:
        size: bytes that are gone.
        lines: line ends among them.
    """

    def __init__(self) -> None:
        self.size = 0
        self.lines = 0
        self._quoted = False
        self._starts_cell = True

    def pass_by(self, held: bytearray) -> tuple[int, bool]:
        """How many bytes can go, and whether the row's end is the last of them."""
        at = 0
        while at < len(held):
            if self._quoted:
                rest = QUOTED.match(held, at)
                at = rest.end() if rest else at
                if at >= len(held) - 1:  # a quote at the end may be the first of two
                    return at, False
                at, self._quoted = at + 1, False
            elif self._starts_cell:
                self._quoted = held[at : at + 1] == b'"'
                at, self._starts_cell = at + self._quoted, False
            else:
                rest = UNQUOTED.match(held, at)
                at = rest.end() if rest else at
                if at < len(held):
                    self._starts_cell = held[at : at + 1] == b","
                    at += 1
                    if not self._starts_cell:
                        return at, True
        return at, False
