"""How a run ends early: on a signal, or on an error that people must be told."""

from __future__ import annotations

import asyncio
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import FrameType

from ingestor.errors import IngestorError, WorkerDiedError, full_reason

SAME_SIGNAL_S = 1.0
"""`timeout` and terminals send a signal to the process and to its group: two of them, one wish."""


class Signals:
    """The first SIGINT or SIGTERM asks the run to stop, the second ends it and its workers at once.

    Args:
        say: how to tell people.
        kill: how to end the workers.

    Attributes:
        received: the first signal's number.
    """

    def __init__(self, *, say: Callable[[str], None], kill: Callable[[], None]) -> None:
        self.received: int | None = None
        self._say = say
        self._kill = kill
        self._at = 0.0
        self._ask: Callable[[], None] = lambda: None
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._receive)

    def tell(self, stop: asyncio.Event) -> None:
        """Pass the signal on to `stop`, whose loop is the running one; also a signal that came before."""
        loop = asyncio.get_running_loop()

        def ask() -> None:
            self._say("stopping: what is packed is still written; once more stops at once")
            stop.set()

        def ask_there() -> None:
            with suppress(RuntimeError):  # the loop has just ended, and the run with it
                loop.call_soon_threadsafe(ask)

        self._ask = ask_there
        if self.received is not None:
            ask()

    def _receive(self, number: int, _: FrameType | None) -> None:
        if self.received is None:
            self.received, self._at = number, time.monotonic()
            self._ask()  # says nothing itself: the signal may have come in the middle of a write
        elif time.monotonic() - self._at > SAME_SIGNAL_S:
            self._kill()
            os._exit(128 + self.received)


def root_cause(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """What failed first; a known error goes before an unknown one, a worker's death comes last of all."""

    def leaves(error: BaseException) -> Iterator[BaseException]:
        if isinstance(error, BaseExceptionGroup):
            for inner in error.exceptions:
                yield from leaves(inner)
        else:
            yield error

    def rank(error: BaseException) -> int:
        known = isinstance(error, IngestorError)
        return 2 if isinstance(error, WorkerDiedError) else 0 if known else 1

    return min(leaves(group), key=rank)


def in_words(error: BaseException) -> str:
    """An error as people should read it; the traceback only of what nobody foresaw."""
    match error:
        case IngestorError():
            return ": ".join(str(part) for part in error.args)
        case OSError():
            return full_reason(error)
        case MemoryError():
            return "out of memory"
    return "".join(traceback.format_exception(error)) + "this is a bug of the ingestor; please report it"
