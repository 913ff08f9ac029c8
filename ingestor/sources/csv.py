"""CSV: a record a row, named by the header. Cells are strings; in quotes they may hold line ends."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from ingestor.records import Document, Failure, RawBlock, Skipped
from ingestor.sources.cutting import Limits
from ingestor.sources.fields import Fields
from ingestor.sources.quoting import ROW, WHOLE, QuotedCutter, row_bytes
from ingestor.sources.tables import Rows, document_of, failure, is_blank, not_utf8
from ingestor.sources.values import RecordError

if TYPE_CHECKING:
    import _csv

__all__ = ["documents", "prose", "splitter"]


def splitter(shard: str, limits: Limits, fields: Fields) -> Rows:
    """Cut behind rows; a line end in quotes ends none."""
    return Rows(fields, partial(QuotedCutter, shard, limits), cells, row_bytes)


def cells(row: bytes) -> list[str] | None:
    """A row's cells; None where it ends within a quoted one.

    Raises:
        UnicodeDecodeError: it is no UTF-8.
        RecordError: bad_row.
    """
    if not ROW.match(row) and not WHOLE.match(row):
        return None
    try:
        return next(_reader(row.decode()), [])
    except csv.Error as error:
        raise RecordError("bad_row", "a CR alone outside quotes is no line end here") from error


def documents(block: RawBlock, fields: Fields) -> Iterator[Document | Failure | Skipped]:
    """Parse each row behind the header; one that cannot be a document is a Failure with its line."""
    shard, header = block.shard.name, row_bytes(block.data)
    columns = cells(block.data[:header]) or []
    try:
        rows = _rows(block.data[header:].decode())
    except (UnicodeDecodeError, csv.Error):
        yield from _one_by_one(block, header, columns, fields)
        return
    for line, row in rows:
        if not is_blank(row):
            try:
                yield document_of(columns, row, fields, shard, block.place + line)
            except RecordError as error:
                yield failure(shard, block.place + line, error)


def _rows(text: str) -> list[tuple[int, list[str]]]:
    """Each row and how many lines precede it.

    Raises:
        csv.Error: what follows in the text would not be parsed right.
    """
    reader = _reader(text)
    found = []
    line = 0
    for row in reader:
        found.append((line, row))
        line = reader.line_num
    return found


def _one_by_one(
    block: RawBlock, header: int, columns: list[str], fields: Fields
) -> Iterator[Document | Failure | Skipped]:
    """Parse what follows the header of a block of whose rows one cannot be parsed."""
    start, place, shard = header, block.place, block.shard.name
    while start < len(block.data):
        found = ROW.match(block.data, start)
        raw = found[0] if found else block.data[start:]
        try:
            row = cells(raw) or []
            if not is_blank(row):
                yield document_of(columns, row, fields, shard, place)
        except UnicodeDecodeError as error:
            yield failure(shard, place, not_utf8(error), block.offset + start - header + error.start)
        except RecordError as error:
            yield failure(shard, place, error)
        place += raw.count(b"\n")
        start += len(raw)


def _reader(text: str) -> _csv.Reader:
    """Only LF ends a line, and cells may be of any length."""
    csv.field_size_limit(sys.maxsize)
    return csv.reader(io.StringIO(text, newline="\n"))


def prose(text: str) -> str:
    """The text is prose already."""
    return text
