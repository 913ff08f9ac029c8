"""Objects on HTTP servers: each is one long answer, taken up again at the byte where it broke off."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ingestor import __version__
from ingestor.errors import SourceError, TransientSourceError
from ingestor.records import Shard
from ingestor.sources.faults import changed, error_of_status, library_errors, retry_after_s
from ingestor.sources.stores import PIECE_BYTES, Found, Patience, check_version, has_version, persist
from ingestor.telemetry import logger

if TYPE_CHECKING:
    from aiohttp import ClientResponse

LEAST_GAIN_BYTES = 64 << 10
"""A connection that brought so much has worked: the tries begin anew."""
NO_RANGES = "the server gives no ranges of bytes, which a Parquet file is read by; copy the file first"
_RANGE = re.compile(r"bytes\s+(?:(\d+)-(\d+)|\*)/(?:(\d+)|\*)")


@dataclass(frozen=True, slots=True)
class Answer:
    """A server's answer to the wish for an object from some byte on.

    Attributes:
        response: gives the bytes.
        skip: bytes that come first and were not asked for.
        stop: the bytes before this place are to come; None where the server does not say.
        last: nothing follows.
        size: of the whole object; None where the server does not say.
        version: see `Found`.
    """

    response: ClientResponse
    skip: int
    stop: int | None
    last: bool
    size: int | None
    version: str


class HttpStore:
    """Objects that are had by GET.

    Args:
        patience: with the servers.
    """

    def __init__(self, patience: Patience) -> None:
        import aiohttp
        from fsspec.implementations.http import HTTPFileSystem

        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=patience.connect_s, sock_read=patience.read_s
        )
        headers = {"Accept-Encoding": "identity", "User-Agent": f"ingestor/{__version__}"}
        given: dict[str, Any] = {"timeout": timeout, "headers": headers, "trust_env": True}
        self._session = aiohttp.ClientSession(auto_decompress=False, **given)
        self._lister = HTTPFileSystem(client_kwargs=given, skip_instance_cache=True)  # finds links in pages
        self._patience = patience

    async def stat(self, url: str) -> Found:
        """Look at an object by asking for its first byte: a URL that is signed for GET refuses HEAD."""
        answer = await self.ask(url, 0, 1)
        try:
            return Found(url, answer.size or 0, answer.version)
        finally:
            answer.response.close()

    async def below(self, url: str) -> list[Found]:
        """What the pages of an index link to, not looked at."""
        with library_errors(url):
            return _linked(await self._lister._find(url, detail=True))

    async def matching(self, url: str) -> list[Found]:
        """What the pages of an index link to and matches, not looked at."""
        with library_errors(url):
            return _linked(await self._lister._glob(url, detail=True))

    def pieces(self, shard: Shard) -> HttpPieces:
        return HttpPieces(self, shard, self._patience)

    async def fetch(self, shard: Shard, start: int, stop: int) -> bytes:
        """See `Store`.

        Raises:
            SourceError: unreadable, where the server gives no ranges.
        """
        return await persist(shard.name, lambda: self._fetch(shard, start, stop), self._patience)

    async def _fetch(self, shard: Shard, start: int, stop: int) -> bytes:
        answer = await self.ask(shard.path, start, stop)
        try:
            check_version(shard, answer.version)
            if answer.skip:
                raise SourceError("unreadable", NO_RANGES)
            wanted = (stop if answer.size is None else min(stop, answer.size)) - start
            held = bytearray()
            while len(held) < wanted and (data := await read(answer, shard.path)):
                held += data
            if answer.size is not None and len(held) < wanted:
                raise TransientSourceError("unreachable", f"{len(held):,} of {wanted:,} bytes came")
            return bytes(held[:wanted])
        finally:
            answer.response.release()

    async def close(self) -> None:
        await self._session.close()

    async def ask(self, url: str, start: int, stop: int | None = None) -> Answer:
        """Ask for an object's bytes from `start` on; who asks closes the response."""
        import yarl

        plain = url.isascii() and " " not in url
        wanted = {"Range": f"bytes={start}-{'' if stop is None else stop - 1}"}
        with library_errors(url):
            response = await self._session.get(yarl.URL(url, encoded=plain), headers=wanted)
        try:
            return _answer_of(response, start)
        except SourceError:
            response.close()
            raise


class HttpPieces:
    """An object's bytes over one connection, or over one after another."""

    def __init__(self, store: HttpStore, shard: Shard, patience: Patience) -> None:
        self._store = store
        self._shard = shard
        self._patience = patience
        self._turn = asyncio.Lock()
        self._answer: Answer | None = None
        self._at = 0
        self._since = 0  # where the connection began
        self._ended = False

    async def next(self) -> bytes:
        """See `Pieces`."""
        async with self._turn:
            held: list[bytes] = []
            until = self._at + PIECE_BYTES
            while self._at < until and not self._ended:
                await persist(self._shard.name, lambda: self._fill(held, until), self._patience)
            return b"".join(held)

    def close(self) -> None:
        """See `Pieces`."""
        if self._answer is not None:
            self._answer.response.close()
            self._answer = None

    async def _fill(self, held: list[bytes], until: int) -> None:
        """Take bytes in; where the connection breaks after a good many, another one brings the rest."""
        try:
            while self._at < until and not self._ended:
                answer = self._answer or await self._ask()
                data = await read(answer, self._shard.path)
                held.append(data)
                self._at += len(data)
                if not data:
                    self._finish(answer)
        except TransientSourceError as error:
            self.close()
            if self._at - self._since < LEAST_GAIN_BYTES:
                raise
            logger().warning("retry", shard=self._shard.name, error=error.detail, byte=self._at)

    async def _ask(self) -> Answer:
        """Ask for what is still to come, past what came before."""
        url, at, versioned = self._shard.path, self._at, has_version(self._shard)
        if at and not versioned:
            detail = f"the connection broke after {at:,} bytes, and the server names no version (ETag or"
            raise SourceError("unreadable", f"{detail} Last-Modified) by which to go on")
        self._since = at
        # What was read ahead leaves no connection open, where that can be helped.
        stop = PIECE_BYTES if versioned and not at else None
        answer = self._answer = await self._store.ask(url, at, stop)
        if answer.stop != at:
            check_version(self._shard, answer.version)
        skip = answer.skip
        while skip:
            data = await read(answer, url, skip)
            if not data:
                raise changed()  # it has become shorter
            skip -= len(data)
        return answer

    def _finish(self, answer: Answer) -> None:
        """An answer is at its end."""
        if answer.stop is not None and self._at < answer.stop:
            raise TransientSourceError("unreachable", f"the answer ended early, after {self._at:,} bytes")
        self._ended = answer.last
        answer.response.release()
        self._answer = None


async def read(answer: Answer, url: str, most: int = PIECE_BYTES) -> bytes:
    """Some bytes; none at the end."""
    if answer.response.status == 416:
        return b""  # whatever it says about that
    with library_errors(url):
        return await answer.response.content.read(most)


def _answer_of(response: ClientResponse, start: int) -> Answer:
    """Understand an answer's head.

    Raises:
        SourceError: transient or not.
    """
    headers, status = response.headers, response.status
    version = headers.get("ETag", "")
    found = _RANGE.match(headers.get("Content-Range", ""))
    size = int(found[3]) if found and found[3] else None
    if status == 200 and headers.get("Content-Length", "").isdigit():
        size = int(headers["Content-Length"])
    if not version and "Last-Modified" in headers:
        version = f"{headers['Last-Modified']} {size}"
    if status == 416 and start >= (size or 0):
        if size is not None and start > size:
            raise changed()
        return Answer(response, 0, start, True, size or start, version)
    if status == 206 and found and found[1] and int(found[1]) == start:
        stop = int(found[2]) + 1
        return Answer(response, 0, stop, size is not None and stop >= size, size, version)
    if status == 200:
        return Answer(response, start, size, True, size, version)
    if status == 206:
        raise SourceError("unreadable", f"not the bytes asked for: {headers.get('Content-Range')}")
    raise error_of_status(status, retry_after_s=retry_after_s(headers.get("Retry-After")))


def _linked(found: Mapping[str, Mapping[str, Any]]) -> list[Found]:
    """Links, but for those that sort an index; not looked at."""
    return [Found(url, folder=info["type"] == "directory") for url, info in found.items() if "?" not in url]
