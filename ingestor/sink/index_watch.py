"""When a server's index is done, and when waiting for it has no point; plain calculation, it never waits."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ingestor.errors import SinkError
from ingestor.sink import Target

LOOK_S = (0.2, 5.0)
"""First and longest pause between two looks."""
WAKE_S = 60.0
"""A server that is grey is woken so often."""
AGAIN_S = 3.0
"""A server that is red and was woken gets so long to try again."""
PATIENCE_S = 3600.0
"""An index that shows no progress for so long is left to the server."""


@dataclass(frozen=True, slots=True)
class Condition:
    """How far an index is.

    Attributes:
        color: green (all done), yellow (being built), grey (to be built, and nobody does) or red (failed).
        error: what the server says went wrong; empty where nothing did.
        queued: writes that are accepted and not applied yet.
        points, indexed: about how many there are, and how many of them are in the index.
    """

    color: str
    error: str
    queued: int
    points: int
    indexed: int

    def __str__(self) -> str:
        queued = f", {self.queued:,} writes queued" if self.queued else ""
        return f"{self.indexed:,} of {self.points:,} ({self.color}{queued})"

    @property
    def failed(self) -> bool:
        return self.color == "red" or bool(self.error)

    @property
    def settled(self) -> bool:
        """Whether nothing is left to do; `indexed` may stay below `points`, for small segments have none."""
        return self.color == "green" and not self.failed and self.queued == 0


class Verdict(Enum):
    """What to do after a look."""

    DONE = "done"
    WAIT = "wait"
    WAKE = "wake"  # wake the server, then wait
    STALLED = "stalled"  # nothing moves: give up


class Watch:
    """Judges one look after the other.

    Args:
        target: whose index it is.
        looks: that have to find it done, one after the other. After a change of settings it takes two: new
            servers, and the other nodes of a cluster, take it up in their own time, and are done until then.

    Attributes:
        pause_s: how long to wait for the next look.
    """

    def __init__(self, target: Target, looks: int = 1) -> None:
        self._target = target
        self._looks_left = self._looks = looks
        self._seen: Condition | None = None
        self._since = 0.0
        self._woken = -WAKE_S
        self._again_s: float | None = None
        self.pause_s = LOOK_S[0] / 2

    def judge(self, now: Condition, at_s: float) -> Verdict:
        """Judge what was seen at a moment, in seconds of any clock.

        A server that is red stays so when what it lacked is there again, until it is woken; so it is, once.

        Raises:
            SinkError: the server cannot build the index.
        """
        self.pause_s = min(2 * self.pause_s, LOOK_S[1])
        if now.failed and self._again_s is None:
            self._again_s = at_s
            return Verdict.WAKE
        if now.failed and at_s - (self._again_s or 0.0) < AGAIN_S:
            return Verdict.WAIT
        if now.failed:
            raise SinkError(
                f"{self._target}: all points are there, but the server cannot build the index"
                f" ({now.color}: {now.error or 'it does not say why'}); see to it, then try again"
            )
        self._looks_left = self._looks_left - 1 if now.settled else self._looks
        if not self._looks_left:
            return Verdict.DONE
        if now != self._seen:
            self._seen, self._since = now, at_s
        elif at_s - self._since >= PATIENCE_S:
            return Verdict.STALLED
        if now.color == "grey" and at_s - self._woken >= WAKE_S:
            self._woken = at_s
            return Verdict.WAKE
        return Verdict.WAIT
