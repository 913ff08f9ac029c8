"""What the stages did during some batches, for the page about a run; holds one window of them at a time."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from ingestor.watching.spans import Span

BATCHES = 24
"""In a window."""
SPANS_KEPT = 4096


@dataclass(slots=True)
class Window:
    """Some batches in a row.

    Attributes:
        first, last: their numbers, from 1.
        begin, end: when, in ns of the system's time; `end` is 0 while it goes on.
        spans: (stage, start, end) of what reached into it.
    """

    first: int
    last: int
    begin: int
    end: int = 0
    spans: list[tuple[str, int, int]] = field(default_factory=list)


class Timeline:
    """Records the first batches, and begins anew when their number has doubled.

    So the window that is left lies in the second half of a long run, where it has found its pace.
    """

    def __init__(self) -> None:
        self._whole: Window | None = None
        self._latest: Window | None = None
        self._batches = 0
        self._next = 1

    def window(self) -> Window | None:
        """The latest that is whole, or else what there is."""
        return self._whole or self._latest

    def batch(self) -> None:
        """A batch sets out for the encoder."""
        self._batches += 1
        latest = self._latest
        if latest is not None and not latest.end:
            if self._batches - latest.first < BATCHES:
                latest.last = self._batches
            else:
                latest.end = time.time_ns()
                self._whole = latest
        if self._batches >= self._next and (latest is None or latest.end):
            self._latest = Window(self._batches, self._batches, time.time_ns())
            self._next = 2 * max(self._batches, BATCHES)

    def span(self, stage: str) -> Span:
        """For a stage's ranges."""
        return Span(stage, self)

    def start(self, name: str) -> None:
        """A range begins."""

    def end(self, name: str, opened: None, since: int) -> None:
        """It ends; it is kept where it reaches into a window."""
        now = time.time_ns()
        for window in {id(found): found for found in (self._whole, self._latest) if found}.values():
            reaches = now > window.begin and (not window.end or since < window.end)
            if reaches and len(window.spans) < SPANS_KEPT:
                window.spans.append((name, since, now))
