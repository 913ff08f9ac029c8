"""When a stage works, and when it waits for what comes in or goes out."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any, Generic, Protocol, TypeVar

T = TypeVar("T")


class Recorder(Protocol):
    """Who wants to know."""

    def start(self, name: str) -> Any:
        """A range begins; it may stay open over an await. What is returned comes back at its end."""
        ...

    def end(self, name: str, opened: Any, since: int) -> None:
        """It ends; it began at `since`, in ns of the system's time."""
        ...


class Span:
    """The ranges of one stage: open while it works, closed while it waits."""

    def __init__(self, name: str, recorder: Recorder) -> None:
        self._name, self._recorder = name, recorder
        self._open: tuple[Any, int] | None = None

    def source(self, items: AsyncIterator[T]) -> AsyncIterator[T]:
        """What the stage takes."""
        return _Source(items, self)

    async def stage(self, stage: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
        """What it makes of it."""
        try:
            async with aclosing(stage) as items:
                self.begin()
                async for item in items:
                    self.end()
                    yield item
                    self.begin()
        finally:
            self.end()

    def begin(self) -> None:
        if self._open is None:
            self._open = self._recorder.start(self._name), time.time_ns()

    def end(self) -> None:
        if self._open is not None:
            self._recorder.end(self._name, *self._open)
            self._open = None


class _Source(Generic[T]):
    def __init__(self, items: AsyncIterator[T], span: Span) -> None:
        self._items, self._span = items, span

    def __aiter__(self) -> AsyncIterator[T]:
        return self

    async def __anext__(self) -> T:
        self._span.end()
        item = await self._items.__anext__()
        self._span.begin()
        return item
