"""Points and payloads in the sinks' own bytes.

A payload is framed once, in the prepare process that makes it: as JSON for the embedded engine, as protobuf
for the server. The protobuf is written by hand, from the public wire format of `qdrant.UpsertPoints`: packed
floats lie on the wire as they lie in memory, so a vector is copied once and never becomes Python objects.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import orjson

from ingestor.records import Float32s, UInt8s

_INT64 = range(-(1 << 63), 1 << 63)
_BYTES = [bytes((number,)) for number in range(256)]
# Tags: field number << 3 | wire type (0 varint, 1 eight bytes, 2 length and bytes).
_COLLECTION, _WAIT, _POINT = b"\x0a", b"\x10\x01", b"\x1a"  # of UpsertPoints
_UUID = b"\x0a\x26\x12\x24"  # PointStruct.id, 38 bytes: PointId.uuid, 36 bytes
_PAYLOAD, _VECTORS = b"\x1a", b"\x22"  # of PointStruct
_UNNAMED, _NAMED = b"\x0a", b"\x12"  # of Vectors
_DENSE, _FLOATS = b"\xaa\x06", b"\x0a"  # Vector.dense, DenseVector.data
_KEY, _VALUE = b"\x0a", b"\x12"  # of a map's entry
_ENTRY = b"\x0a"  # the first field of Struct, ListValue and NamedVectors
_NULL, _DOUBLE, _INTEGER, _STRING, _BOOL = b"\x08\x00", b"\x11", b"\x18", b"\x22", b"\x28"  # of Value
_STRUCT, _LIST = b"\x32", b"\x3a"


def json_payload(payload: Mapping[str, Any]) -> bytes:
    """A payload as JSON; a float that is not finite becomes null.

    Raises:
        TypeError: the payload holds what JSON cannot.
    """
    return bytes(memoryview(orjson.dumps(payload)))  # whose own bytes keep room for several kilobytes more


def protobuf_payload(payload: Mapping[str, Any]) -> bytes:
    """A payload as the entries of `PointStruct.payload`; a float that is not finite becomes null.

    Raises:
        TypeError: the payload holds what JSON cannot.
        OverflowError: an integer over 64 bits.
    """
    return b"".join([_field(_PAYLOAD, _entry(key, value)) for key, value in payload.items()])


def upsert_points(
    collection: str,
    ids: UInt8s,
    payloads: Sequence[bytes],
    vectors: Float32s,
    *,
    vector_name: str | None = None,
) -> bytes:
    """An `UpsertPoints` message that waits until the points are applied.

    Args:
        collection: its name.
        ids: uint8[n, 16], point ids as UUID bytes.
        payloads: n payloads, framed by `protobuf_payload`.
        vectors: float32[n, d].
        vector_name: the vector's name in the collection, None where it has none.
    """
    raw = np.ascontiguousarray(vectors, "<f4").reshape(-1).view(np.uint8).data
    digits = ids.tobytes().hex()
    row_bytes = 4 * vectors.shape[1]
    head = _vector_head(row_bytes, vector_name)
    fixed_bytes = len(_UUID) + 36 + len(head) + row_bytes
    parts: list[bytes | memoryview] = [_field(_COLLECTION, collection.encode()), _WAIT]
    for row, payload in enumerate(payloads):
        length = _varint(fixed_bytes + len(payload))
        parts += (_POINT, length, _UUID, _uuid_text(digits, 32 * row), payload, head)
        parts.append(raw[row * row_bytes : (row + 1) * row_bytes])
    return b"".join(parts)


def _vector_head(row_bytes: int, name: str | None) -> bytes:
    """All of `PointStruct.vectors` that precedes the floats."""
    head = _FLOATS + _varint(row_bytes)
    head = _DENSE + _varint(len(head) + row_bytes) + head
    if name is None:
        head = _UNNAMED + _varint(len(head) + row_bytes) + head
    else:
        head = _field(_KEY, name.encode()) + _VALUE + _varint(len(head) + row_bytes) + head
        head = _ENTRY + _varint(len(head) + row_bytes) + head
        head = _NAMED + _varint(len(head) + row_bytes) + head
    return _VECTORS + _varint(len(head) + row_bytes) + head


def _uuid_text(digits: str, at: int) -> bytes:
    text = f"{digits[at : at + 8]}-{digits[at + 8 : at + 12]}-{digits[at + 12 : at + 16]}"
    return f"{text}-{digits[at + 16 : at + 20]}-{digits[at + 20 : at + 32]}".encode()


def _varint(number: int) -> bytes:
    if number < 0x80:
        return _BYTES[number]
    if number < 0x4000:
        return _BYTES[number & 0x7F | 0x80] + _BYTES[number >> 7]
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _field(tag: bytes, content: bytes) -> bytes:
    return tag + _varint(len(content)) + content


def _entry(key: str, value: Any) -> bytes:
    """One entry of a map from names to values."""
    if not isinstance(key, str):
        raise TypeError(f"a payload's keys are text, not {type(key).__name__}")
    content = _value(value)
    return _key(key) + _varint(len(content)) + content


@lru_cache(1024)
def _key(key: str) -> bytes:
    """An entry's key, up to the length of its value; most payloads have the same few."""
    return _field(_KEY, key.encode()) + _VALUE


def _value(value: Any) -> bytes:
    """A `Value` message's content; bool comes before int, for it is one."""
    if isinstance(value, str):
        return _field(_STRING, value.encode())
    if value is None:
        return _NULL
    if isinstance(value, bool):
        return _BOOL + (b"\x01" if value else b"\x00")
    if isinstance(value, int):
        if value not in _INT64:
            raise OverflowError(f"the payload's integer {value} does not fit into 64 bits")
        return _INTEGER + _varint(value & 0xFFFF_FFFF_FFFF_FFFF)
    if isinstance(value, float):
        return _DOUBLE + struct.pack("<d", value) if math.isfinite(value) else _NULL
    if isinstance(value, Mapping):
        return _field(_STRUCT, b"".join([_field(_ENTRY, _entry(*entry)) for entry in value.items()]))
    if isinstance(value, list | tuple):
        return _field(_LIST, b"".join([_field(_ENTRY, _value(element)) for element in value]))
    raise TypeError(f"a payload cannot hold a {type(value).__name__}")
