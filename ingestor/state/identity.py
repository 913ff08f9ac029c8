"""What names a point, what tells two records apart, and what makes two vectors comparable."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import numpy as np
import orjson

from ingestor.config.forms import of_its_own
from ingestor.encoding.model import ModelSpec
from ingestor.records import UInt8s

NAMESPACE = UUID("5f0c2a3e-8f55-5d0b-9c57-2f1d7c1e4b60")
"""Of all point ids. Changing it would make every stored point a stranger."""

_NAMESPACE = NAMESPACE.bytes


def point_id(document: str, chunk: int) -> bytes:
    """The 16 bytes of `uuid5(NAMESPACE, f"{document}\\n{chunk}")`, without the cost of a UUID object."""
    digest = bytearray(hashlib.sha1(_NAMESPACE + f"{document}\n{chunk}".encode()).digest()[:16])
    digest[6] = digest[6] & 0x0F | 0x50
    digest[8] = digest[8] & 0x3F | 0x80
    return bytes(digest)


def point_ids(document: str, chunks: Sequence[int]) -> bytes:
    """The ids of some chunks of a document, back to back."""
    return b"".join([point_id(document, chunk) for chunk in chunks])


MOST_CHUNKS = 1 << 31


def origin_of(id_: bytes | None, payload: Mapping[str, Any]) -> tuple[str, int] | None:
    """The document and chunk that a stored point is of; None where this program did not write it."""
    document, chunk = payload.get("document"), payload.get("chunk")
    if not isinstance(document, str) or not isinstance(chunk, int) or not 0 <= chunk < MOST_CHUNKS:
        return None
    return (document, chunk) if id_ == point_id(document, chunk) else None


def as_ids(packed: bytes) -> UInt8s:
    """Point ids back to back as uint8[n, 16]."""
    return np.frombuffer(packed, np.uint8).reshape(-1, 16)


def document_key(document: str) -> int:
    """Signed 64 bits of a hash of the id: what the ledger's index holds in place of the id."""
    return int.from_bytes(hashlib.blake2b(document.encode(), digest_size=8).digest(), "little", signed=True)


def record_hash(text: str, payload: Mapping[str, Any], salt: bytes) -> bytes:
    """16 bytes that change when what is stored of a record does, or how it is read and cut (`salt`)."""
    digest = hashlib.blake2b(text.encode(), digest_size=16, key=salt)
    if payload:
        digest.update(b"\0" + orjson.dumps(payload, option=orjson.OPT_SORT_KEYS))
    return digest.digest()


def salt_of(record_identity: Mapping[str, Any]) -> bytes:
    """16 bytes that stand for one way to read and cut records."""
    return hashlib.blake2b(
        orjson.dumps(record_identity, option=orjson.OPT_SORT_KEYS), digest_size=16
    ).digest()


def vector_identity(
    spec: ModelSpec, *, distance: str, vector_name: str | None, precision: str
) -> dict[str, str | int | bool | None]:
    """What two vectors must have in common to be compared. A model in a folder is known by its weights, not
    by where it lies.
    """
    form: dict[str, str | int | bool | None] = {"precision": precision} if of_its_own(precision) else {}
    return form | {
        "model": spec.revision if spec.revision.startswith("sha256:") else spec.name,
        "revision": spec.revision,
        "pooling": spec.pooling,
        "normalize": spec.normalize,
        "prompt": spec.prompt,
        "size": spec.dimension,
        "distance": distance,
        "name": vector_name,
    }
