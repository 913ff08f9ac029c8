"""Shards that are files, and may be no files any more."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from typing import BinaryIO

import aiofiles

from ingestor.errors import SourceError
from ingestor.records import Shard, ShardEnd
from ingestor.sources.listing import fingerprint_of

PIECE_BYTES = 1 << 20


class LocalFile:
    """A file, read piece by piece; open only while it is read."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._inode = 0
        self._whole = False
        self._digest = Digest()

    def first(self) -> bytes:
        """The first piece, read in this thread."""
        with self.open() as file:
            self._inode = os.fstat(file.fileno()).st_ino
            piece = file.read(PIECE_BYTES)  # less only at the end of the file
        self._whole = len(piece) < PIECE_BYTES
        self._digest.update(piece)
        return piece

    async def rest(self) -> AsyncGenerator[bytes, None]:
        """The pieces behind the first one.

        Raises:
            SourceError: vanished, where another file took its place.
        """
        if self._whole:
            return
        async with aiofiles.open(self._shard.path, "rb", buffering=0, opener=open_regular) as file:
            if os.fstat(file.fileno()).st_ino != self._inode:
                raise SourceError("vanished", "another file took its place while it was read")
            await file.seek(PIECE_BYTES)
            while piece := await file.read(PIECE_BYTES):
                self._digest.update(piece)
                yield piece

    def open(self) -> BinaryIO:
        """The file anew, for what reads it here and there."""
        return open(self._shard.path, "rb", opener=open_regular)

    def close(self) -> None:
        """Nothing is left open."""

    def checked(self, end: ShardEnd) -> ShardEnd:
        """A file that is not what was listed any more may not be passed over next time."""
        try:
            same = fingerprint_of(os.stat(self._shard.path)) == self._shard.fingerprint
        except OSError:
            same = False
        if end.errors:
            return end
        if same:
            whole = self._digest.nbytes == self._shard.size  # a Parquet file is read here and there
            return replace(end, digest=str(self._digest) if whole else digest_of(self._shard))
        changed = ("changed", "the file changed after it was listed; it is read again next time")
        return ShardEnd(False, warnings=(*end.warnings, changed))


class Digest:
    """Of a file's bytes; as a text that begins with their number.

    Attributes:
        nbytes: how many there were so far.
    """

    def __init__(self) -> None:
        self.nbytes = 0
        self._hash = hashlib.blake2b(digest_size=16)

    def update(self, piece: bytes) -> None:
        """Add the next bytes; a millisecond for a megabyte."""
        self.nbytes += len(piece)
        self._hash.update(piece)

    def __str__(self) -> str:
        return f"{self.nbytes}:{self._hash.hexdigest()}"


def digest_of(shard: Shard, stopped: Callable[[], bool] = lambda: False) -> str | None:
    """Read a file for its digest alone; None where it is not what was listed, or the run was stopped."""
    digest = Digest()
    try:
        with open(shard.path, "rb", buffering=0, opener=open_regular) as file:
            while piece := file.read(PIECE_BYTES):
                digest.update(piece)
                if stopped():
                    return None
            return str(digest) if fingerprint_of(os.fstat(file.fileno())) == shard.fingerprint else None
    except (OSError, SourceError):
        return None  # whoever reads it will say what is wrong


def open_regular(path: str, flags: int) -> int:
    """Open a file that was a regular one when it was listed; a pipe in its place must not hold us up.

    Raises:
        SourceError: not_a_file.
    """
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise SourceError("not_a_file", "no regular file any more")
    return descriptor
