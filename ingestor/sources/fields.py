"""Which fields of a record make the document, and the rules for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ingestor.records import Document
from ingestor.sources.values import VISIBLE, Cleaner, RecordError

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
        raise RecordError("missing_text", f"no {' nor '.join(map(repr, paths))}")
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
