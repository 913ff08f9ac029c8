"""JSON Lines: a record a line, and only LF ends a line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import orjson

from ingestor.errors import SourceError
from ingestor.records import Document, Failure, RawBlock, ShardEnd, Skipped
from ingestor.sources.cutting import Cut, Cutter, Limits, shard_end
from ingestor.sources.fields import Fields, document
from ingestor.sources.values import RecordError, RoundedError

MAX_DIGITS = 4_000
"""Python makes no integers of more than 4,300 digits out of text; longer ones stay text."""


class Lines:
    """A `Splitter` that cuts at line ends."""

    def __init__(self, shard: str, limits: Limits, fields: Fields) -> None:
        self._cutter = Cutter(shard, b"\n", limits)

    def push(self, data: bytes) -> Iterator[Cut]:
        return self._cutter.push(data)

    def finish(self, *, packed: bool, broken: SourceError | None) -> tuple[list[Cut], ShardEnd]:
        tail = self._cutter.tail()
        if not tail.strip() or is_record(tail):
            return self._cutter.finish(keep_tail=True), shard_end(broken)
        if broken or packed:
            return self._cutter.finish(keep_tail=not broken), shard_end(broken)
        cuts = self._cutter.finish(keep_tail=False)
        detail = (
            f"the last line ({len(tail):,} bytes) has no end and is no whole record: still being written?"
        )
        return cuts, ShardEnd(False, warnings=(("truncated_input", detail),))


splitter = Lines


def is_record(line: bytes) -> bool:
    """Whether the line is a whole JSON object."""
    try:
        return isinstance(parse(line), dict)
    except RecordError:
        return False


def documents(block: RawBlock, fields: Fields) -> Iterator[Document | Failure | Skipped]:
    """Parse each line; what cannot be a document is a Failure with its line and byte position."""
    shard, place, offset = block.shard.name, block.place, block.offset
    for line in block.data.split(b"\n"):
        if line and not line.isspace():
            try:
                yield _document(line, fields, shard, place)
            except RecordError as error:
                at = offset + getattr(error.__cause__, "start", 0)
                yield Failure(shard, place, error.kind, error.detail, error.document, at)
        place += 1
        offset += len(line) + 1


def _document(line: bytes, fields: Fields, shard: str, place: int) -> Document:
    try:
        record = orjson.loads(line)
        exact = False
    except orjson.JSONDecodeError as error:
        if error.msg.startswith("depth limit"):
            raise RecordError("too_deep", "nested too deeply to be parsed") from None
        record = parse(line)
        exact = True
    if type(record) is not dict:
        raise RecordError("not_an_object", f"the line is JSON, but {_named(record)} instead of an object")
    try:
        return document(record, fields, shard, place, exact=exact)
    except RoundedError:
        return document(parse(line), fields, shard, place, exact=True)


def parse(line: bytes) -> Any:
    """Parse what the fast parser refuses (NaN, lone surrogates) or rounds (large integers).

    Raises:
        RecordError: bad_encoding, bad_json or too_deep.
    """
    try:
        return json.loads(line.decode(), parse_int=_integer)
    except UnicodeDecodeError as error:
        byte = line[error.start]
        raise RecordError(
            "bad_encoding", f"byte {error.start + 1} of the line (0x{byte:02x}) is no UTF-8"
        ) from error
    except RecursionError as error:
        raise RecordError("too_deep", "nested too deeply to be parsed") from error
    except json.JSONDecodeError as error:
        raise RecordError("bad_json", f"{error.msg} at character {error.pos + 1} of the line") from error


def _integer(digits: str) -> int | str:
    return int(digits) if len(digits) <= MAX_DIGITS else digits


def _named(value: Any) -> str:
    names = {str: "a string", list: "an array", type(None): "null", bool: "true or false"}
    return names.get(type(value), "a number")


def prose(text: str) -> str:
    """The text is prose already."""
    return text
