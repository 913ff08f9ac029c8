"""What a run's counters were, second by second; of a long run every second sample goes, again and again."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from ingestor.channel import StageTime

SAMPLE_S = 1.0
LEFT_S = 120.0
"""The time left is told by so many seconds, so that it does not jump."""
SAMPLES_KEPT = 600


@dataclass(frozen=True, slots=True)
class Sample:
    """The counters at one moment.

    Attributes:
        at_s: since the run began.
        done: share of the work; 0 while that is unknown.
    """

    at_s: float
    documents: int
    chunks: int
    tokens: int
    points: int
    done: float
    stages: Mapping[str, StageTime]
    queues: Mapping[str, tuple[int, int]]


COUNTED = ("documents", "chunks", "tokens", "points")


class History:
    """Samples: all of the last two minutes, and some hundreds of the whole run.

    Attributes:
        recent: oldest first.
        kept: of the whole run, evenly.
    """

    def __init__(self, most: int = SAMPLES_KEPT) -> None:
        self.recent: deque[Sample] = deque(maxlen=round(LEFT_S / SAMPLE_S) + 1)
        self.kept: list[Sample] = []
        self._most = most
        self._apart_s = SAMPLE_S

    def add(self, sample: Sample) -> None:
        """Take the next sample."""
        self.recent.append(sample)
        early_s = SAMPLE_S / 2  # timers are not exact
        if not self.kept or sample.at_s - self.kept[-1].at_s >= self._apart_s - early_s:
            self.kept.append(sample)
        if len(self.kept) > self._most:
            del self.kept[1::2]
            self._apart_s *= 2

    def whole(self) -> list[Sample]:
        """The whole run's, the last one among them."""
        last = list(self.recent)[-1:]
        return self.kept if last == self.kept[-1:] else self.kept + last

    def since(self, seconds: float) -> tuple[Sample, Sample] | None:
        """What lies so far apart, or nearly so, and the newest sample; None while there is only one."""
        if len(self.recent) < 2:
            return None
        *earlier, newest = self.recent  # copied in one go, for threads ask, too
        young = (sample for sample in earlier if newest.at_s - sample.at_s <= seconds + SAMPLE_S / 2)
        return next(young, earlier[-1]), newest
