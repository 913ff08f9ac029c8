"""Which fields of a record make the document, and the rules for their values."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from ingestor.errors import SourceError
from ingestor.records import Document

MAX_DEPTH = 30
"""Levels of a payload value: each is three protobuf messages, and readers refuse more than a hundred."""

UNKEEPABLE = re.compile("[\ud800-\udfff\0]")
VISIBLE = re.compile(
    "[^\\s\x00-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    "\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufffd]"
)
INT64 = range(-(1 << 63), 1 << 63)
MISSING = object()


@dataclass(frozen=True, slots=True)
class Fields:
    """What the configuration asks of a record.

    Attributes:
        text: dotted paths whose texts are joined by a blank line.
        id: dotted path; None makes the id from the shard's name and the record's place.
        id_scope: `collection`, or `shard` where ids are unique in their shard only.
        metadata: dotted paths kept in the payload; None keeps all but the text.
    """

    text: tuple[str, ...]
    id: str | None
    id_scope: str
    metadata: tuple[str, ...] | None


class RecordError(SourceError):
    """A record is refused.

    Args:
        kind: one of the names in the report.
        detail: what was wrong.
        document: its id, where that is known.
    """

    def __init__(self, kind: str, detail: str, document: str | None = None) -> None:
        super().__init__(kind, detail)
        self.document = document


class RoundedError(Exception):
    """A number in the record lost digits in parsing: parse it again, slowly."""


class Cleaner:
    """Makes a record's values fit to be stored, and counts the characters that it had to replace.

    Args:
        exact: integers of any size are as they were written; else large ones may have become floats.
    """

    def __init__(self, *, exact: bool) -> None:
        self._exact = exact
        self.replaced = 0

    def text(self, text: str) -> str:
        """Put U+FFFD in the place of NUL and of surrogates without a partner."""
        if text.isascii():
            if "\0" not in text:
                return text
        elif not UNKEEPABLE.search(text):
            return text
        text, count = UNKEEPABLE.subn("\ufffd", text)
        self.replaced += count
        return text

    def value(self, value: Any, depth: int = 0) -> Any:
        """Make a payload value of a parsed one.

        Raises:
            RecordError: too_deep.
            RoundedError: a large integer has become a float.
        """
        kind = type(value)
        if kind is str:
            return self.text(value)
        if kind is int:
            return value if value in INT64 else str(value)
        if kind is float:
            return self.number(value)
        if kind is not dict and kind is not list:
            return value
        if depth == MAX_DEPTH:
            raise RecordError("too_deep", f"a value kept in the payload has more than {MAX_DEPTH} levels")
        if kind is list:
            return [self.value(part, depth + 1) for part in value]
        return {self.text(key): self.value(part, depth + 1) for key, part in value.items()}

    def number(self, value: float) -> float | None:
        """None for what JSON has no number for."""
        if not self._exact and abs(value) >= 2.0**63:
            raise RoundedError
        return value if math.isfinite(value) else None


def find(record: dict[str, Any], path: str) -> Any:
    """The value under a key spelt like the whole path, else along the path; MISSING where there is none."""
    value = record.get(path, MISSING)
    if value is not MISSING or "." not in path:
        return value
    value = record
    for key in path.split("."):
        if not isinstance(value, dict) or key not in value:
            return MISSING
        value = value[key]
    return value


def prefix(shard: str) -> str:
    """Name a shard within an id, so that no two shards and records share one."""
    return shard.replace("%", "%25").replace("#", "%23") + "#"


def document(record: dict[str, Any], fields: Fields, shard: str, place: int, *, exact: bool) -> Document:
    """Make a record's document.

    Args:
        record: the parsed record.
        exact: whether the parser keeps large integers.

    Raises:
        RecordError: bad_id, missing_text, text_not_string, empty_text or too_deep.
        RoundedError: parse again with a parser that is exact.
    """
    cleaner = Cleaner(exact=exact)
    name = _id(record, fields, shard, place, cleaner)
    try:
        text = cleaner.text(_text(record, fields.text))
        if not VISIBLE.search(text):
            raise RecordError("empty_text", f"nothing to embed in {', '.join(fields.text)}")
        payload = cleaner.value(_metadata(record, fields))
    except RecordError as error:
        error.document = name
        raise
    return Document(name, text, payload, place, cleaner.replaced)


def _id(record: dict[str, Any], fields: Fields, shard: str, place: int, cleaner: Cleaner) -> str:
    if fields.id is None:
        return f"{prefix(shard)}{place}"
    value = find(record, fields.id)
    kind = type(value)
    if kind is float and (cleaner.number(value) is None or not value.is_integer()):
        raise RecordError("bad_id", f"{fields.id} is {value}, a number with a fraction")
    if kind is float:
        value = int(value)
    elif kind is not int and (kind is not str or not value):
        raise RecordError("bad_id", f"{fields.id} is {_seen(value)}; it has to be a string or a whole number")
    name = cleaner.text(str(value))
    return name if fields.id_scope == "collection" else prefix(shard) + name


def _text(record: dict[str, Any], paths: tuple[str, ...]) -> str:
    texts = []
    for path in paths:
        value = find(record, path)
        if type(value) is str:
            texts.append(value)
        elif value is not MISSING and value is not None:
            raise RecordError("text_not_string", f"{path} is {_seen(value)}, not a string")
    if not texts:
        raise RecordError("missing_text", f"no {' nor '.join(paths)}")
    return texts[0] if len(texts) == 1 else "\n\n".join(text for text in texts if text)


def _metadata(record: dict[str, Any], fields: Fields) -> dict[str, Any]:
    payload: dict[str, Any] = {}
    if fields.metadata is None:
        payload.update(record)
        for path in fields.text:
            _without(payload, path)
        return payload
    for path in fields.metadata:
        value = find(record, path)
        if value is not MISSING:
            _put(payload, path if path in record else path.split("."), value)
    return payload


def _put(payload: dict[str, Any], path: str | list[str], value: Any) -> None:
    """Set a value under a key, or along a path, where the database's filters look for it."""
    *parents, key = [path] if isinstance(path, str) else path
    for parent in parents:
        inner = payload.get(parent)
        payload[parent] = payload = dict(inner) if isinstance(inner, dict) else {}
    payload[key] = value


def _without(payload: dict[str, Any], path: str) -> None:
    """Take a field out of a record's copy; the record itself stays as it is."""
    if payload.pop(path, MISSING) is not MISSING or find(payload, path) is MISSING:
        return
    *parents, key = path.split(".")
    for parent in parents:
        payload[parent] = payload = dict(payload[parent])
    del payload[key]


def _seen(value: Any) -> str:
    if value is MISSING:
        return "missing"
    if value is None or value == "":
        return "null" if value is None else "empty"
    names = {bool: "true or false", dict: "an object", list: "a list", int: "a number", float: "a number"}
    return names.get(type(value), type(value).__name__)
