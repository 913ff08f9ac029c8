"""How many requests a sink process may have under way: fewer where the server has become slow."""

from __future__ import annotations

LEAST, MOST, FIRST = 1, 8, 4
SLOWER = 3.0
"""Answers that take so many times what they should are a sign that the server has too much to do."""
SMOOTHING = 0.3
"""Weight of the latest answer in what one takes: single answers are late or early by chance."""
WINDOW = 500
"""Answers after which the best times begin to be forgotten."""


class InFlight:
    """A bound that shrinks by half when answers take longer, and grows by one for as many good answers.

    What an answer should take is told by requests that were alone under way, as the first of each slot is:
    what they took, evened out, when they took least of late. A server that writes one request after the other
    takes as many times longer as there are requests under way, so that is no reason to shrink.
    """

    def __init__(self) -> None:
        self._limit = float(FIRST)
        self._alone: tuple[float, float] | None = None  # seconds and bytes, evened out
        self._newest: tuple[float, float] | None = None
        self._before: tuple[float, float] | None = None
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
        self._answers += 1
        if self._answers == WINDOW:
            self._before, self._newest, self._answers = self._newest, None, 0
        if under_way == 1:
            self._learn(seconds, nbytes)
        best_s, best_bytes = min(filter(None, (self._before, self._newest)), default=(seconds, nbytes))
        if seconds > SLOWER * best_s * max(1.0, nbytes / best_bytes) * under_way:
            self.shrink()
        elif under_way >= self.limit:
            self._limit = min(MOST, self._limit + 1 / self._limit)

    def shrink(self) -> None:
        """Halve the bound: an answer came late, or the server would not take a request."""
        self._limit = max(LEAST, self._limit / 2)

    def _learn(self, seconds: float, nbytes: int) -> None:
        """Take note of what a request took that was alone."""
        old_s, old_bytes = self._alone or (seconds, nbytes)
        self._alone = (
            old_s + SMOOTHING * (seconds - old_s),
            old_bytes + SMOOTHING * (nbytes - old_bytes),
        )
        self._newest = min(self._newest or self._alone, self._alone)
