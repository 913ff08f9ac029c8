"""How long a call is made again that failed with what may pass: the one place where anything is retried."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from ingestor.errors import ResourceError, SinkError, TransientSinkError

T = TypeVar("T")


class ServiceError(TransientSinkError):
    """The server failed inside; it is asked again a few times only."""


class FullError(TransientSinkError, ResourceError):
    """The server has no room, until somebody makes some."""


class RateLimitedError(TransientSinkError):
    """The server has said when it will take the request.

    Args:
        message: for people.
        retry_after_s: from now on.
    """

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message, retry_after_s)
        self.message = message
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True, slots=True)
class Wait:
    """A pause before the next try.

    Attributes:
        kind: as in the report.
        reason: for people, in a few words.
        seconds: how long it is.
    """

    kind: str
    reason: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Patience:
    """The bounds of trying again. What the server asks to wait for has bounds of its own.

    Attributes:
        seconds: from a call's first failure on.
        tries: failures at most.
        inside_tries: failures inside the server at most.
        first_pause_s, longest_pause_s: between them pauses double.
        limit_s: the longest wait that a server which limits the rate may ask for.
        limited_s: how long such waits may hold up one call in all.
        full_s: how long a full disk may.
        full_pause_s: pause before a full disk is tried again.
    """

    seconds: float = 120.0
    tries: int = 60
    inside_tries: int = 4
    first_pause_s: float = 0.1
    longest_pause_s: float = 10.0
    limit_s: float = 120.0
    limited_s: float = 3600.0
    full_s: float = 600.0
    full_pause_s: float = 5.0


class Attempts:
    """The failures of one call so far, and what follows from them. Plain calculation: the caller waits."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._failures = self._inside = 0
        self._since: float | None = None
        self._limited_s = self._full_s = 0.0

    def next_wait(self, error: TransientSinkError, now: float, chance: float) -> Wait:
        """What to wait for before the next try.

        Args:
            error: what the last try came to.
            now: a reading of a clock, in seconds.
            chance: from 0 to 1, so that those who failed together do not come back together.

        Raises:
            SinkError, ResourceError: it is not worth waiting any more.
        """
        if self._since is None:
            self._since = now
        if isinstance(error, RateLimitedError):
            return self._limited(error, chance)
        if isinstance(error, FullError):
            return self._full(error, chance)
        return self._failed(error, now - self._since - self._limited_s - self._full_s, chance)

    def _limited(self, error: RateLimitedError, chance: float) -> Wait:
        asked_s, most_s = error.retry_after_s, self._patience.limit_s
        if asked_s > most_s:
            raise SinkError(
                f"{error}: it asks to wait {asked_s:.0f} s, and a run waits {most_s:.0f} s at most; run again"
                " later, or raise the limit"
            )
        if self._limited_s > self._patience.limited_s:
            raise SinkError(f"{error}: one request has waited {self._limited_s:.0f} s for its turn")
        seconds = asked_s + chance * min(0.5, 0.05 + asked_s / 10)
        self._limited_s += seconds
        return Wait("rate_limited", "the server limits the rate of writing", seconds)

    def _full(self, error: FullError, chance: float) -> Wait:
        if self._full_s >= self._patience.full_s:
            raise ResourceError(
                f"{error}; tried for {self._full_s:.0f} s, nothing is lost: make room, then run again"
            )
        seconds = self._patience.full_pause_s * (0.8 + 0.4 * chance)
        self._full_s += seconds
        left_s = max(0.0, self._patience.full_s - self._full_s)
        return Wait("server_full", f"the server has no room left, the run ends in {left_s:.0f} s", seconds)

    def _failed(self, error: TransientSinkError, spent_s: float, chance: float) -> Wait:
        patience, inside = self._patience, isinstance(error, ServiceError)
        self._failures += 1
        self._inside += inside
        over = spent_s >= patience.seconds or self._failures >= patience.tries
        if over or self._inside >= patience.inside_tries:
            raise SinkError(f"{error}; tried {self._failures} times in {spent_s:.0f} s")
        pause_s = min(patience.longest_pause_s, patience.first_pause_s * 2 ** (self._failures - 1))
        seconds = pause_s * (0.5 + chance)
        if inside:
            return Wait("server_failed", "the server has failed inside", seconds)
        return Wait("server_unavailable", "the server has not taken a request", seconds)


def silent(_: Wait | None) -> None:
    """Tell nobody."""


def persist(call: Callable[[], T], *, patience: Patience, tell: Callable[[Wait | None], None] = silent) -> T:
    """Make a call again, with growing pauses, while it fails with what may pass.

    Args:
        call: what to call.
        patience: the bounds.
        tell: hears what is waited for, and None when the wait is over.

    Raises:
        SinkError, ResourceError: patience has ended.
    """
    attempts = Attempts(patience)
    while True:
        try:
            return call()
        except TransientSinkError as error:
            wait = attempts.next_wait(error, time.monotonic(), random.random())
        tell(wait)
        time.sleep(wait.seconds)
        tell(None)
