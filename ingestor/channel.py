"""Bounded hand-over between stages, and the one place where stages run side by side."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Wait:
    """Adds up the time inside `with`, that of one which has not ended included."""

    def __init__(self) -> None:
        self._ended_s = 0.0
        self._since: list[float] = []

    @property
    def seconds(self) -> float:
        now = time.perf_counter()
        return self._ended_s + sum(now - since for since in self._since)

    def __enter__(self) -> None:
        self._since.append(time.perf_counter())

    def __exit__(self, *_: object) -> None:
        self._ended_s += time.perf_counter() - self._since.pop()


class Channel(Generic[T]):
    """A queue with a bound and an end.

    `close()` says that all is sent: call it after success only, once for each producer. A producer that fails
    leaves the channel open; its TaskGroup then cancels whoever waits.

    Args:
        depth: items that may wait; a sender beyond that waits.
        producers: how many `close()` make the end.
    """

    def __init__(self, depth: int, producers: int = 1) -> None:
        self._depth = depth
        self._open = producers
        self._items: deque[T] = deque()
        self._changed = asyncio.Condition()
        self._item_wait = Wait()
        self._room_wait = Wait()

    @property
    def fill(self) -> tuple[int, int]:
        """How many items wait, and how many may."""
        return len(self._items), self._depth

    @property
    def waited_for_item_s(self) -> float:
        """Seconds that takers have waited so far."""
        return self._item_wait.seconds

    @property
    def waited_for_room_s(self) -> float:
        """Seconds that senders have waited so far."""
        return self._room_wait.seconds

    async def send(self, item: T) -> None:
        """Hand over one item; waits while the channel is full."""
        async with self._changed:
            if len(self._items) >= self._depth:
                with self._room_wait:
                    await self._changed.wait_for(lambda: len(self._items) < self._depth)
            self._items.append(item)
            self._changed.notify_all()

    async def close(self) -> None:
        """One producer has sent everything."""
        async with self._changed:
            self._open -= 1
            self._changed.notify_all()

    def __aiter__(self) -> AsyncIterator[T]:
        return self

    async def __anext__(self) -> T:
        async with self._changed:
            if not self._items and self._open:
                with self._item_wait:
                    await self._changed.wait_for(lambda: bool(self._items) or not self._open)
            if not self._items:
                raise StopAsyncIteration
            item = self._items.popleft()
            self._changed.notify_all()
            return item


@dataclass(slots=True)
class StageTime:
    """Where a stage's time went, in seconds. Busy is what is left when the waiting is taken off."""

    busy_s: float = 0.0
    waiting_for_input_s: float = 0.0
    waiting_for_room_s: float = 0.0

    def add(self, other: StageTime) -> None:
        self.busy_s += other.busy_s
        self.waiting_for_input_s += other.waiting_for_input_s
        self.waiting_for_room_s += other.waiting_for_room_s


class Clock:
    """Reads off two channels where the time of the stage between them goes, from now on."""

    def __init__(self, source: Channel[Any] | None, out: Channel[Any] | None) -> None:
        self._source = source
        self._out = out
        self._since = self._now()

    def read(self) -> StageTime:
        """Since the start."""
        total, waited, room = (now - then for now, then in zip(self._now(), self._since, strict=True))
        return StageTime(total - waited - room, waited, room)

    def _now(self) -> tuple[float, float, float]:
        waited = self._source.waited_for_item_s if self._source else 0.0
        room = self._out.waited_for_room_s if self._out else 0.0
        return time.perf_counter(), waited, room


async def pump(stage: AsyncGenerator[T, None], out: Channel[T]) -> None:
    """Drive one stage to its end and send what it yields; closes `out` on success only."""
    async with aclosing(stage) as items:
        async for item in items:
            await out.send(item)
    await out.close()
