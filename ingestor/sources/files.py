"""Shards that are files, and may be no files any more."""

from __future__ import annotations

import os
import stat
from collections.abc import AsyncGenerator
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

    def first(self) -> bytes:
        """The first piece, read in this thread."""
        with self.open() as file:
            self._inode = os.fstat(file.fileno()).st_ino
            piece = file.read(PIECE_BYTES)  # less only at the end of the file
        self._whole = len(piece) < PIECE_BYTES
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
        if same or end.errors:
            return end
        changed = ("changed", "the file changed after it was listed; it is read again next time")
        return ShardEnd(False, warnings=(*end.warnings, changed))


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
