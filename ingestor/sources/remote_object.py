"""Shards behind URLs."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future
from typing import BinaryIO, cast

from ingestor.records import Shard, ShardEnd
from ingestor.sources.range_file import RangeFile
from ingestor.sources.remote import Remote
from ingestor.sources.stores import Pieces

AHEAD_PIECES = 4


class RemoteObject:
    """An object, read piece by piece; the next pieces are on their way while one is cut."""

    def __init__(self, shard: Shard, remote: Remote) -> None:
        self._shard = shard
        self._remote = remote
        self._pieces: Pieces | None = None

    async def first(self) -> bytes:
        """The first piece; in the loop of `remote`.

        Raises:
            SourceError: it cannot be had.
        """
        store = await self._remote.store(self._shard.path)
        self._pieces = store.pieces(self._shard)
        try:
            return await self._pieces.next()
        except BaseException:
            self._pieces.close()
            raise

    async def rest(self) -> AsyncGenerator[bytes, None]:
        """The pieces behind the first one, for any loop.

        Raises:
            SourceError: no more of them can be had.
        """
        assert self._pieces is not None
        ahead: deque[Future[bytes]] = deque()
        try:
            while True:
                while len(ahead) < AHEAD_PIECES:
                    ahead.append(self._remote.submit(self._pieces.next()))
                piece = await self._remote.arrived(ahead.popleft())
                if not piece:
                    return
                yield piece
        finally:
            for future in ahead:
                future.cancel()

    def open(self) -> BinaryIO:
        """The object as a file, for one thread."""
        return cast(BinaryIO, RangeFile(self._submit, self._shard.size))

    def close(self) -> None:
        """Let go of the connection, from any thread."""
        if self._pieces is not None:
            self._remote.call(self._pieces.close)

    def checked(self, end: ShardEnd) -> ShardEnd:
        """Each answer was held against what was listed already."""
        return end

    def _submit(self, start: int, stop: int) -> Callable[[], bytes]:
        future = self._remote.submit(self._fetch(start, stop))
        return lambda: self._remote.result(future)

    async def _fetch(self, start: int, stop: int) -> bytes:
        store = await self._remote.store(self._shard.path)
        return await store.fetch(self._shard, start, stop)
