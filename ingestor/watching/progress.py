"""How a run is going: counted by its parts, sampled once a second, read by whoever shows it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from ingestor.channel import Channel, Clock, StageTime
from ingestor.watching.history import COUNTED, LEFT_S, History, Sample
from ingestor.watching.report import Report, slowest
from ingestor.watching.tally import Tally
from ingestor.watching.timeline import Timeline

RATES_S = 30.0
"""Rates are of the last seconds, so that people see a change."""
EARLY = 0.01
"""Nothing is told of the time left before so much is done."""
ORDER = ("read", "prepare", "write", "pack", "prefetch", "encode", "copy_out", "upsert", "settle")


class Queue(Protocol):
    """What holds things between two stages."""

    @property
    def fill(self) -> tuple[int, int]:
        """How many it holds, and how many it can hold."""
        ...


class Stages:
    """Where the time of the stages goes, and what waits between them, over all passes of a run."""

    def __init__(self) -> None:
        self._ended: dict[str, StageTime] = {}
        self._clocks: dict[str, Clock] = {}
        self._queues: dict[str, Queue] = {}

    def begin(self, name: str, source: Channel[Any] | None, out: Channel[Any] | None) -> None:
        """A stage starts; `source` and `out` tell when it waits."""
        self._clocks[name] = Clock(source, out)
        self._ended.setdefault(name, StageTime())
        if source is not None:
            self.watch(name, source)

    def end(self, name: str) -> None:
        """It has ended well."""
        self._ended[name].add(self._clocks.pop(name).read())

    def watch(self, name: str, queue: Queue) -> None:
        """Tell how full this queue is; that of a stage is what waits before it."""
        self._queues[name] = queue

    def times(self) -> dict[str, StageTime]:
        """Of each stage so far, also of one that has not ended."""
        found = {name: StageTime() for name in ORDER if name in self._ended}
        for name, time_ in found.items():
            time_.add(self._ended[name])
            if clock := self._clocks.get(name):
                time_.add(clock.read())
        return found

    def fills(self) -> dict[str, tuple[int, int]]:
        """How many things wait before each stage, and how many can."""
        return {name: self._queues[name].fill for name in (*ORDER, "slots") if name in self._queues}


@dataclass(slots=True)
class Progress:
    """Running totals; the stages raise them at any time, on the event loop.

    Attributes:
        report: the account so far; what a run that fails leaves behind.
        shards_total, bytes_total: that are to be read.
        limit: documents to read at most; None: all.
        passed: documents that are counted as read and lie in shards that are passed over.
        note: what is going on, in a few words, where the counters do not show it.
        accounted: the report holds what the tally says, and the failures that are open.
        began: in seconds of the system's time.
        timeline: what the stages did during some batches, where somebody asks for it.
        chosen: what the run found out or decided, in words: the model's identity, the device and so on.
        paths: where the shards are that something went wrong in, by name.
        waited: gives what the sinks waited for: how often, and how many seconds in all.
    """

    report: Report = field(default_factory=Report)
    tally: Tally = field(default_factory=Tally)
    stages: Stages = field(default_factory=Stages)
    history: History = field(default_factory=History)
    shards_total: int = 0
    bytes_total: int = 0
    limit: int | None = None
    passed: int = 0
    note: str = ""
    accounted: bool = False
    began: float = field(default_factory=time.time)
    timeline: Timeline | None = None
    chosen: dict[str, Any] = field(default_factory=dict)
    paths: dict[str, str] = field(default_factory=dict)
    waited: Callable[[], dict[str, tuple[int, float]]] = dict
    _since: float = field(default_factory=time.perf_counter)
    _moved: tuple[float, tuple[int, ...]] = (0.0, ())

    @contextmanager
    def doing(self, note: str) -> Iterator[None]:
        """Say what is going on while the block runs, unless something else is said meanwhile."""
        before, self.note = self.note, note
        try:
            yield
        finally:
            self.note = before if self.note == note else self.note
            self._moved = self.elapsed_s, self._moved[1]

    @property
    def elapsed_s(self) -> float:
        return time.perf_counter() - self._since

    @property
    def done(self) -> float:
        """Share of the work: of what was read, as much as of its tokens went to the encoder."""
        tally = self.tally
        if not self.bytes_total:
            return 0.0
        read = tally.taken / self.bytes_total
        if self.limit is not None:
            read = max(read, (tally.read - self.passed) / self.limit)
        behind = min(1.0, tally.tokens / tally.tokens_found) if tally.tokens_found else 1.0
        return max(0.0, min(1.0, read * behind))

    def sample(self) -> Sample:
        """Take down the counters; called once a second, and at the end."""
        tally, at_s = self.tally, self.elapsed_s
        moved = (tally.settled, tally.tokens, tally.points, tally.points_deleted, tally.taken)
        if moved != self._moved[1]:
            self._moved = at_s, moved
        counters = tally.settled, tally.chunks, tally.tokens, tally.points
        sample = Sample(at_s, *counters, self.done, self.stages.times(), self.stages.fills())
        self.history.add(sample)
        return sample

    @property
    def still_s(self) -> float:
        """How long no counter has moved, and nothing that has a note of its own was done."""
        return self.elapsed_s - self._moved[0]

    def rates(self) -> dict[str, float]:
        """Of what is counted, a second, over the last half minute."""
        if (found := self.history.since(RATES_S)) is None:
            return dict.fromkeys(COUNTED, 0.0)
        first, last = found
        seconds = last.at_s - first.at_s
        return {name: (getattr(last, name) - getattr(first, name)) / seconds for name in COUNTED}

    def left_s(self) -> float | None:
        """Seconds to the end, were all the rest like the last two minutes; None while that says little."""
        if (found := self.history.since(LEFT_S)) is None or not EARLY <= self.done < 1:
            return None
        first, last = found
        gained = last.done - first.done
        return (1 - self.done) * (last.at_s - first.at_s) / gained if gained > 0 else None

    def busy(self) -> dict[str, float]:
        """The share of the last half minute in which each stage neither waited for input nor for room."""
        if (found := self.history.since(RATES_S)) is None:
            return {}
        first, last = found
        seconds, idle = last.at_s - first.at_s, StageTime()
        return {
            name: max(0.0, min(1.0, (spent.busy_s - first.stages.get(name, idle).busy_s) / seconds))
            for name, spent in last.stages.items()
        }

    def bottleneck(self) -> str:
        """The stage that the others wait for just now; "" if none runs."""
        busy = {name: StageTime(share) for name, share in self.busy().items()}
        return slowest(busy) if any(time_.busy_s for time_ in busy.values()) else ""
