"""What a store of objects behind URLs gives, and how long its servers are given."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

import stamina

from ingestor.errors import SourceError, TransientSourceError
from ingestor.records import Shard
from ingestor.sources.faults import changed
from ingestor.telemetry import logger

T = TypeVar("T")

PIECE_BYTES = 1 << 20
UNKNOWN = "unknown "
"""Begins the fingerprint of what has no version."""
MOST_RETRY_AFTER_S = 30.0
"""However long a server asks to wait."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a server is given.

    Attributes:
        connect_s: to take a connection.
        read_s: to send the next byte.
        tries: for one request.
        total_s: no further try after so long.
    """

    connect_s: float = 10.0
    read_s: float = 30.0
    tries: int = 8
    total_s: float = 90.0


@dataclass(frozen=True, slots=True)
class Found:
    """What lies behind a URL.

    Attributes:
        url: for requests; may hold secrets.
        size: bytes; 0 where the server does not say.
        version: a text that changes when the content does; empty where nothing tells.
        folder: there is no object, but others lie below.
    """

    url: str
    size: int = 0
    version: str = ""
    folder: bool = False


class Pieces(Protocol):
    """One object from its first byte to its last; broken connections are mended."""

    async def next(self) -> bytes:
        """The next piece, of about a MiB; empty at the end. Several calls may wait at once, in order.

        Raises:
            SourceError: it cannot be had, or it is not the version that was listed any more.
        """

    def close(self) -> None:
        """Let go of the connection; from the loop's own thread."""


class Store(Protocol):
    """Where objects are; all of it runs in the loop of `Remote`, all of it raises SourceError."""

    async def stat(self, url: str) -> Found:
        """Look at one object."""

    async def below(self, url: str) -> list[Found]:
        """All objects below a URL that is taken for a folder."""

    async def matching(self, url: str) -> list[Found]:
        """Objects and folders that match a pattern."""

    def pieces(self, shard: Shard) -> Pieces:
        """Read an object from its beginning."""

    async def fetch(self, shard: Shard, start: int, stop: int) -> bytes:
        """The bytes from `start` to before `stop`, or to the end."""

    async def close(self) -> None:
        """Close the connections."""


def has_version(shard: Shard) -> bool:
    """Whether two answers can be told to be of one version."""
    return not shard.fingerprint.startswith(UNKNOWN)


def check_version(shard: Shard, version: str) -> None:
    """Refuse what is not the version that was listed.

    Raises:
        SourceError: changed.
    """
    if version != (shard.fingerprint if has_version(shard) else ""):
        raise changed()


async def persist(shard: str, call: Callable[[], Awaitable[T]], patience: Patience) -> T:
    """Make a call again, with growing pauses, while it fails with what may pass.

    Raises:
        SourceError: as the last call.
    """

    def pause(error: Exception) -> bool | float:
        if not isinstance(error, TransientSourceError):
            return False
        logger().warning("retry", shard=shard, error=error.detail)
        return True if error.retry_after_s is None else min(error.retry_after_s, MOST_RETRY_AFTER_S)

    try:
        async for attempt in stamina.retry_context(
            on=pause,
            attempts=patience.tries,
            timeout=patience.total_s,
            wait_initial=0.2,
            wait_max=10.0,
            wait_jitter=0.5,
        ):
            with attempt:
                return await call()
    except TransientSourceError as error:
        raise SourceError(error.kind, f"{error.detail} (tried several times)") from error
    raise AssertionError("the last attempt returns or raises")
