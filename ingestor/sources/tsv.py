"""TSV: a record a line, cells between tabs, named by the header. Quotes are characters like any other."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from ingestor.records import Document, Failure, RawBlock, Skipped
from ingestor.sources.cutting import Cutter, Limits
from ingestor.sources.fields import Fields
from ingestor.sources.tables import Rows, document_of, failure, is_blank, not_utf8
from ingestor.sources.values import RecordError

__all__ = ["documents", "prose", "splitter"]


def splitter(shard: str, limits: Limits, fields: Fields) -> Rows:
    """Cut at line ends."""
    return Rows(fields, partial(Cutter, shard, b"\n", limits), cells, row_bytes)


def row_bytes(data: bytes) -> int:
    """The length of the first line with its end; 0 where that is not there."""
    return data.find(b"\n") + 1


def cells(row: bytes) -> list[str]:
    """A line's cells.

    Raises:
        UnicodeDecodeError: it is no UTF-8.
    """
    return row.removesuffix(b"\n").removesuffix(b"\r").decode().split("\t")


def documents(block: RawBlock, fields: Fields) -> Iterator[Document | Failure | Skipped]:
    """Parse each line behind the header; one that cannot be a document is a Failure with line and byte."""
    header, *lines = block.data.split(b"\n")
    columns, shard = cells(header), block.shard.name
    place, offset = block.place, block.offset
    for line in lines:
        try:
            row = cells(line)
            if not is_blank(row):
                yield document_of(columns, row, fields, shard, place)
        except UnicodeDecodeError as error:
            yield failure(shard, place, not_utf8(error), offset + error.start)
        except RecordError as error:
            yield failure(shard, place, error, offset)
        place += 1
        offset += len(line) + 1


def prose(text: str) -> str:
    """The text is prose already."""
    return text
