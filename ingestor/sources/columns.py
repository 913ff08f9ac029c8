"""Which columns of an Arrow table are read, as which types, and what Python makes of them."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyarrow import types

from ingestor.errors import SourceError
from ingestor.sources.fields import Fields
from ingestor.sources.tables import check_columns, missing_column

TEXT = (types.is_string, types.is_large_string, types.is_string_view)
BYTES = (types.is_binary, types.is_large_binary, types.is_binary_view, types.is_fixed_size_binary)
AS_TEXT = (types.is_temporal, types.is_decimal)
"""What the payload keeps as it is written: dates, times, amounts."""


def chosen_columns(schema: pa.Schema, fields: Fields) -> list[str] | None:
    """Dotted paths of the columns to be read; None for all.

    Raises:
        SourceError: missing_column, wrong_format or unsupported_type.
    """
    for path in fields.text:
        _check_type(path, _type_at(schema, path), (*TEXT, *BYTES, types.is_null), "text")
    if fields.id is not None:
        id_type = _type_at(schema, fields.id)
        numbers = (types.is_integer, types.is_floating, types.is_null, _is_uuid, _is_whole_decimal)
        _check_type(fields.id, id_type, (*TEXT, *BYTES, *numbers), "an id")
    asked = [*fields.text, *([fields.id] if fields.id is not None else []), *(fields.metadata or ())]
    tops = None if fields.metadata is None else tuple(_top(schema, path) for path in asked)
    check_columns(schema.names, Fields((), None, "", tops))
    return None if tops is None else list(dict.fromkeys(asked))


def _top(schema: pa.Schema, path: str) -> str:
    return path if path in schema.names else path.partition(".")[0]


def _type_at(schema: pa.Schema, path: str) -> pa.DataType:
    """The type under a name spelt like the whole path, else along the path."""
    top, *inner = [path] if path in schema.names else path.split(".")
    if top not in schema.names:
        raise missing_column([path], schema.names)
    found = schema.field(schema.names.index(top)).type
    for name in inner:
        if not types.is_struct(found) or found.get_field_index(name) < 0:
            raise missing_column([path], schema.names)
        found = found.field(name).type
    return _unwrapped(found)


def _unwrapped(kind: pa.DataType) -> pa.DataType:
    """What a dictionary or an extension holds."""
    if types.is_dictionary(kind):
        return _unwrapped(kind.value_type)
    return (
        _unwrapped(kind.storage_type)
        if isinstance(kind, pa.BaseExtensionType) and not _is_uuid(kind)
        else kind
    )


def _check_type(
    path: str, kind: pa.DataType, allowed: tuple[Callable[[pa.DataType], bool], ...], use: str
) -> None:
    if not any(test(kind) for test in allowed):
        raise SourceError("unsupported_type", f"column {path!r} is {kind}, which cannot be {use}")


def _is_uuid(kind: pa.DataType) -> bool:
    return isinstance(kind, pa.UuidType)


def _is_whole_decimal(kind: pa.DataType) -> bool:
    return bool(types.is_decimal(kind)) and kind.scale == 0


def plain(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The same columns as types that a payload can hold, without the writer's notes.

    Raises:
        SourceError: unsupported_type.
    """
    for change in (_in_utc, _plain):
        schema = pa.schema([pa.field(field.name, change(field.type)) for field in rows.schema])
        if not schema.equals(rows.schema, check_metadata=True):
            rows = rows.cast(schema)
    return rows


def _in_utc(kind: pa.DataType) -> pa.DataType:
    if types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, "UTC")
    return _within(_unwrapped(kind), _in_utc)


def _plain(kind: pa.DataType) -> pa.DataType:
    """Times and amounts as text."""
    return pa.string() if any(test(kind) for test in AS_TEXT) else _within(kind, _plain)


def _raw(kind: pa.DataType) -> pa.DataType:
    """Text as bytes."""
    return pa.large_binary() if any(test(kind) for test in TEXT) else _within(kind, _raw)


def _within(kind: pa.DataType, change: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """The same lists and structs of changed types."""
    if types.is_struct(kind):
        names = [field.name for field in kind]
        if len(set(names)) < len(names):
            raise SourceError("unsupported_type", f"fields of one name in {kind}")
        return pa.struct([pa.field(field.name, change(field.type)) for field in kind])
    if types.is_map(kind):
        return pa.map_(change(kind.key_type), change(kind.item_type))
    if types.is_large_list(kind):
        return pa.large_list(change(kind.value_type))
    if types.is_list(kind) or types.is_fixed_size_list(kind):
        return pa.list_(change(kind.value_type))
    return kind


def python_values(column: pa.Array) -> tuple[list[Any], bool]:
    """A column's values, and whether bytes that are no UTF-8 may stand in them as surrogates."""
    simple = not any(test(column.type) for test in (*BYTES, _is_uuid, types.is_nested))
    try:
        values = column.to_pylist()
        if simple:
            return values, False
    except UnicodeDecodeError:
        values = column.cast(_raw(column.type)).to_pylist()
    return [_python(value) for value in values], True


def _python(value: Any) -> Any:
    kind = type(value)
    if kind is bytes:
        return value.decode("utf-8", "surrogateescape")
    if kind is dict:
        return {key: _python(inner) for key, inner in value.items()}
    if kind is list or kind is tuple:  # a map's entries are tuples
        return [_python(inner) for inner in value]
    return str(value) if kind is uuid.UUID else value
