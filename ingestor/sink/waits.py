"""What the sink processes wait for, told while they wait: for the progress line, the log and the report."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from multiprocessing.connection import Connection

from ingestor.sink.patience import Wait
from ingestor.telemetry import logger


def nowhere(_: str) -> None:
    """Show nothing."""


class Waits:
    """Hears a pipe from each sink process. Belongs to the event loop's thread.

    Args:
        show: is given what to show of it, "" when nobody waits any more.
    """

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show
        self._pipes: list[tuple[Connection, Connection]] = []
        self._now: dict[int, Wait] = {}
        self._times: Counter[str] = Counter()
        self._seconds: dict[str, float] = {}
        self._reasons: dict[str, str] = {}

    def open(self) -> Connection:
        """The end of a new pipe, for one process to write to."""
        reader, writer = get_context("spawn").Pipe(duplex=False)
        asyncio.get_running_loop().add_reader(reader.fileno(), self._hear, len(self._pipes), reader)
        self._pipes.append((reader, writer))
        return writer

    def remarks(self) -> Iterator[tuple[str, str]]:
        """(kind, detail) of all that was waited for so far."""
        for kind, times in self._times.items():
            yield (
                kind,
                f"{self._reasons[kind]}: waited {self._seconds[kind]:,.1f} s in all (times: {times:,})",
            )

    def totals(self) -> dict[str, tuple[int, float]]:
        """How often each kind was waited for so far, and how many seconds in all."""
        return {kind: (times, self._seconds[kind]) for kind, times in dict(self._times).items()}

    def close(self) -> None:
        """Hear no more."""
        while self._pipes:
            reader, writer = self._pipes.pop()
            asyncio.get_running_loop().remove_reader(reader.fileno())
            reader.close()
            writer.close()
        self._show("")

    def _hear(self, process: int, reader: Connection) -> None:
        wait: Wait | None = reader.recv()
        if wait is None:
            self._now.pop(process, None)
        else:
            self._now[process] = wait
            self._count(wait)
        longest = max(self._now.values(), key=lambda wait: wait.seconds, default=None)
        self._show(f"waiting {longest.seconds:.0f} s: {longest.reason}" if longest else "")

    def _count(self, wait: Wait) -> None:
        if wait.kind not in self._times:
            logger().warning("sink waits", kind=wait.kind, reason=wait.reason, seconds=round(wait.seconds, 1))
        self._seconds[wait.kind] = self._seconds.get(wait.kind, 0.0) + wait.seconds
        self._reasons[wait.kind] = wait.reason
        self._times[wait.kind] += 1  # last, for `totals` is asked from threads, too
