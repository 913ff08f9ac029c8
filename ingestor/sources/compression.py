"""What a shard is packed with, and how to unpack it piece by piece in bounded memory."""

from __future__ import annotations

import bz2
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from ingestor.errors import SourceError

if sys.version_info >= (3, 14):
    from compression import zstd as zstd
else:
    from backports import zstd as zstd

SLICE_BYTES = 64 << 10
"""Packed bytes given to a decompressor at once; few, as it copies what follows the end of a member."""


class Member(Protocol):
    """One gzip member, bzip2 stream or zstd frame being unpacked."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int) -> bytes: ...


class GzipMember:
    """A `Member` made of zlib's older interface."""

    def __init__(self) -> None:
        self._zlib = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
        self.needs_input = True

    @property
    def eof(self) -> bool:
        return self._zlib.eof

    @property
    def unused_data(self) -> bytes:
        return self._zlib.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        unpacked = self._zlib.decompress(self._zlib.unconsumed_tail + data, max_length)
        self.needs_input = not self._zlib.unconsumed_tail and len(unpacked) < max_length
        return unpacked


@dataclass(frozen=True, slots=True)
class Packing:
    """A way to pack a file.

    Attributes:
        name: what people call it.
        magics: how a member may begin; all of one length.
        member: makes what unpacks one member.
    """

    name: str
    magics: tuple[bytes, ...]
    member: Callable[[], Member]


BZIP2_MAGICS = tuple(
    b"BZh%d" % level + block for level in range(1, 10) for block in (b"1AY&SY", b"\x17rE8P\x90")
)
ZSTD_MAGICS = (b"\x28\xb5\x2f\xfd", *(bytes([first]) + b"\x2a\x4d\x18" for first in range(0x50, 0x60)))
PACKINGS = (
    Packing("gzip", (b"\x1f\x8b",), GzipMember),
    Packing("zstd", ZSTD_MAGICS, zstd.ZstdDecompressor),
    Packing("bzip2", BZIP2_MAGICS, bz2.BZ2Decompressor),
)


def packing_of(head: bytes) -> Packing | None:
    """Tell from a file's first bytes how it is packed; its name does not count."""
    return next((packing for packing in PACKINGS if head.startswith(packing.magics)), None)


class Unpacker:
    """Undoes one shard's packing: members back to back are one stream, as their tools have it.

    Args:
        packing: None passes the bytes on as they are.
        step_bytes: the most that is unpacked at a time.
    """

    def __init__(self, packing: Packing | None, step_bytes: int) -> None:
        self._packing = packing
        self._step_bytes = step_bytes
        self._member: Member | None = None
        self._held = b""
        self._unpacked = 0

    def push(self, piece: bytes) -> Iterator[bytes]:
        """Unpack one piece of the file, in steps.

        Raises:
            SourceError: corrupt_input, trailing_garbage or window_too_large.
        """
        if self._packing is None:
            yield piece
            return
        for start in range(0, len(piece), SLICE_BYTES):
            yield from self._unpack(self._packing, piece[start : start + SLICE_BYTES])

    def _unpack(self, packing: Packing, data: bytes) -> Iterator[bytes]:
        self._held += data
        while member := self._member or self._next_member(packing):
            data, self._held = self._held, b""
            unpacked = self._step(member, data)
            if unpacked:
                yield unpacked
            if member.eof:
                self._held, self._member = member.unused_data, None
            elif member.needs_input:
                return

    def _next_member(self, packing: Packing) -> Member | None:
        if packing.name == "gzip" and self._unpacked:
            self._held = self._held.lstrip(b"\0")  # tape blocks and some writers pad with zeros
        if self._held.startswith(packing.magics):
            self._member = packing.member()
        elif not any(magic.startswith(self._held) for magic in packing.magics):
            where = f"after {self._unpacked:,} unpacked bytes"
            raise SourceError("trailing_garbage", f"what follows the {packing.name} stream is none, {where}")
        return self._member

    def _step(self, member: Member, data: bytes) -> bytes:
        try:
            unpacked = member.decompress(data, self._step_bytes)
        except (zlib.error, OSError, zstd.ZstdError) as error:
            kind = "window_too_large" if "too much memory" in str(error) else "corrupt_input"
            raise SourceError(kind, f"{error}, after {self._unpacked:,} unpacked bytes") from error
        self._unpacked += len(unpacked)
        return unpacked

    def finish(self) -> None:
        """Say that the file is at its end.

        Raises:
            SourceError: truncated_input.
        """
        if self._packing is None or (self._member is None and not self._held):
            return
        where = f"after {self._unpacked:,} unpacked bytes"
        raise SourceError("truncated_input", f"the {self._packing.name} stream ends too early, {where}")
