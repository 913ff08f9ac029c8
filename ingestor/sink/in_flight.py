"""How many requests a sink process may have under way: fewer where the server has become slow."""

from __future__ import annotations

LEAST, MOST, FIRST = 1, 8, 4
SLOWER = 3.0
"""Answers that take so many times what they took at best are a sign that the server has too much to do."""
WINDOW = 500
"""Answers after which the best one begins to be forgotten."""


class InFlight:
    """A bound that shrinks by half when answers take longer, and grows by one for as many good answers.

    What an answer should take is told by the fastest one of late. A server that writes one request after the
    other takes as many times longer as there are requests under way, so that is no reason to shrink.
    """

    def __init__(self) -> None:
        self._limit = float(FIRST)
        self._newest: tuple[float, int] | None = None
        self._before: tuple[float, int] | None = None
        self._answers = 0

    @property
    def limit(self) -> int:
        """Requests that may be under way."""
        return int(self._limit)

    def answered(self, seconds: float, nbytes: int, under_way: int) -> None:
        """Take note of an answer.

        Args:
            seconds: from the request's sending to the answer.
            nbytes: of the request.
            under_way: requests at the time when it was sent, itself included.
        """
        best_s, best_bytes = self._best_of(seconds, nbytes)
        expected_s = best_s * max(1.0, nbytes / best_bytes) * under_way
        if seconds > SLOWER * expected_s:
            self.shrink()
        elif under_way >= self.limit:
            self._limit = min(MOST, self._limit + 1 / self._limit)

    def shrink(self) -> None:
        """Halve the bound: an answer came late, or the server would not take a request."""
        self._limit = max(LEAST, self._limit / 2)

    def _best_of(self, seconds: float, nbytes: int) -> tuple[float, int]:
        """The fastest answer of the last one or two windows, this one included."""
        if self._answers == WINDOW:
            self._before, self._newest, self._answers = self._newest, None, 0
        self._answers += 1
        self._newest = min(self._newest or (seconds, nbytes), (seconds, nbytes))
        return min(self._before or self._newest, self._newest)
