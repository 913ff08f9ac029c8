"""What formats of rows and columns share: the check of their columns, and rows of text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Protocol

from ingestor.errors import SourceError
from ingestor.records import Document, Failure, ShardEnd
from ingestor.sources.cutting import Cut, shard_end
from ingestor.sources.fields import Fields, document
from ingestor.sources.values import RecordError

MOST_SHOWN = 30
"""Columns that a message names."""
MOST_HEADER_BYTES = 1 << 20


def check_columns(columns: Sequence[str], fields: Fields) -> None:
    """Refuse a table that lacks a column of text or id, or has two of a name that is asked for.

    Raises:
        SourceError: missing_column, with the columns there are; wrong_format.
    """
    needed = [*fields.text, *([fields.id] if fields.id is not None else [])]
    if lacking := [name for name in needed if name not in columns]:
        raise missing_column(lacking, columns)
    asked = set(columns) - {""} if fields.metadata is None else {*needed, *fields.metadata}
    if twice := sorted(name for name in asked if columns.count(name) > 1):
        raise SourceError("wrong_format", f"several columns are called {', '.join(map(repr, twice))}")


def missing_column(lacking: Sequence[str], columns: Sequence[str]) -> SourceError:
    """Says which columns are not there, and which are."""
    shown = ", ".join(map(repr, columns[:MOST_SHOWN])) + (", ..." if len(columns) > MOST_SHOWN else "")
    named = ", ".join(map(repr, lacking))
    return SourceError(
        "missing_column", f"no column {named}, see source.text_field and source.id_field; there are {shown}"
    )


def document_of(
    columns: Sequence[str], cells: Sequence[str], fields: Fields, shard: str, place: int
) -> Document:
    """Make a row's document; cells are strings and stay as they are written.

    Raises:
        RecordError: bad_row, or what refuses the document.
    """
    if len(cells) != len(columns):
        raise RecordError("bad_row", f"{len(cells)} cells, where the header has {len(columns)}")
    record = dict(zip(columns, cells, strict=True))
    record.pop("", None)  # a column without a name is no field
    return document(record, fields, shard, place, exact=True)


class RowCutter(Protocol):
    """Cuts behind rows, as `Cutter` does."""

    def push(self, data: bytes) -> Iterator[Cut]: ...
    def tail(self) -> bytes: ...
    def finish(self, *, keep_tail: bool) -> list[Cut]: ...


class Rows:
    """A `Splitter` of rows of text, that puts the header before each block's data.

    A block's place and offset are those of the first row behind the header.

    Args:
        fields: what the header has to have.
        cutter: makes what finds where rows end, given the place and the offset of the first.
        cells: parses a row; None where it ends within a quoted cell.
        row_bytes: the length of the first row, its end included; 0 where it has none.
    """

    def __init__(
        self,
        fields: Fields,
        cutter: Callable[[int, int], RowCutter],
        cells: Callable[[bytes], list[str] | None],
        row_bytes: Callable[[bytes], int],
    ) -> None:
        self._fields = fields
        self._make_cutter = cutter
        self._cells = cells
        self._row_bytes = row_bytes
        self._head = b""  # until the header has come
        self._header = b""
        self._columns = 0
        self._cutter: RowCutter | None = None

    def push(self, data: bytes) -> Iterator[Cut]:
        if self._cutter is None:
            self._head += data
            data = self._behind_header()
        if self._cutter:
            yield from map(self._framed, self._cutter.push(data))

    def finish(self, *, packed: bool, broken: SourceError | None) -> tuple[list[Cut], ShardEnd]:
        try:
            if self._cutter is None and not broken and self._head.strip():
                list(self.push(b"\n"))
                if self._cutter is None:
                    raise SourceError("wrong_format", "no header: its quote is never closed")
        except SourceError as error:
            return [], shard_end(error)
        if self._cutter is None:
            return [], shard_end(broken)
        tail = self._cutter.tail()
        growing = bool(tail.strip()) and not broken and not packed and self._is_growing(tail)
        cuts = [*map(self._framed, self._cutter.finish(keep_tail=not broken and not growing))]
        if not growing:
            return cuts, shard_end(broken)
        detail = f"the last row ({len(tail):,} bytes) has no end and is not whole: still being written?"
        return cuts, ShardEnd(False, warnings=(("truncated_input", detail),))

    def _is_growing(self, tail: bytes) -> bool:
        """Whether what has no end lacks cells; a quote still open behind a line's end is a mistake."""
        try:
            cells = self._cells(tail)
        except (UnicodeDecodeError, RecordError):
            return False  # to be refused as what it is
        return not tail.endswith(b"\n") if cells is None else len(cells) < self._columns

    def _framed(self, cut: Cut) -> Cut:
        return replace(cut, data=self._header + cut.data) if cut.data else cut

    def _behind_header(self) -> bytes:
        """Take the header, which is the first row that is not blank, and give what follows it."""
        start = 0
        while size := self._row_bytes(self._head[start:]):
            row = self._head[start : start + size]
            start += size
            if row.strip():
                self._take_header(row)
                self._cutter = self._make_cutter(1 + self._head.count(b"\n", 0, start), start)
                return self._head[start:]
        if len(self._head) > MOST_HEADER_BYTES:
            detail = f"no header: the first row has more than {MOST_HEADER_BYTES:,} bytes"
            raise SourceError("wrong_format", detail)
        return b""

    def _take_header(self, row: bytes) -> None:
        try:
            columns = self._cells(row) or []
        except UnicodeDecodeError as error:
            detail = f"the header is no UTF-8 at its byte {error.start + 1}"
            raise SourceError("wrong_format", detail) from error
        except RecordError as error:
            raise SourceError("wrong_format", f"the header: {error.detail}") from error
        check_columns(columns, self._fields)
        self._columns = len(columns)
        self._header = row


def failure(shard: str, place: int, error: RecordError, offset: int | None = None) -> Failure:
    """What refuses a row."""
    return Failure(shard, place, error.kind, error.detail, error.document, offset)


def not_utf8(error: UnicodeDecodeError) -> RecordError:
    """A row that is refused for a byte."""
    byte = error.object[error.start]
    return RecordError("bad_encoding", f"byte {error.start + 1} of the row (0x{byte:02x}) is no UTF-8")


def is_blank(cells: Sequence[str]) -> bool:
    """Whether a line holds nothing: it is passed over."""
    return not cells or (len(cells) == 1 and not cells[0].strip())
