"""Logging, and what is done again and again while a run goes on."""

from __future__ import annotations

import asyncio
import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

LogFormat = Literal["text", "json"]

NAME_WIDTH = 11
"""Columns of what a line of a run begins with."""


@contextmanager
def repeat(interval_s: float, action: Callable[[], object]) -> Iterator[None]:
    """Call `action` from the running loop again and again; it needs no task of its own."""
    loop = asyncio.get_running_loop()
    handle: asyncio.TimerHandle

    def tick() -> None:
        nonlocal handle
        action()
        handle = loop.call_later(interval_s, tick)

    handle = loop.call_later(interval_s, tick)
    try:
        yield
    finally:
        handle.cancel()


class _Lasting(io.FileIO):
    """Takes all that is written, whether or not anybody can have it any more."""

    def write(self, data: ReadableBuffer) -> int:
        try:
            return super().write(data) or memoryview(data).nbytes  # a terminal that takes nothing just now
        except OSError:
            return memoryview(data).nbytes


def lasting_stderr() -> TextIO:
    """Stderr that outlives who reads it: a terminal or pipe that was closed must not end a run."""
    if sys.stderr is None:  # closed before this process began
        return open(os.devnull, "w", encoding="utf-8")
    file = io.BufferedWriter(_Lasting(sys.stderr.fileno(), "w", closefd=False))
    return io.TextIOWrapper(file, sys.stderr.encoding, errors="backslashreplace", line_buffering=True)


def say(line: str) -> None:
    """One line for people."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def configure_logging(log_format: LogFormat) -> None:
    """Send what is logged to stderr, one line an event, in either form."""
    import structlog

    last: list[Any] = [structlog.processors.JSONRenderer()]
    if log_format == "text":
        last = [_unadorned, structlog.dev.ConsoleRenderer(colors=_has_colours(), pad_event_to=NAME_WIDTH)]
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="%Y-%m-%dT%H:%M:%S%z", utc=False),
            structlog.processors.format_exc_info,
            *last,
        ],
        logger_factory=lambda *_: structlog.WriteLogger(sys.stderr),  # a live line may have replaced it
        cache_logger_on_first_use=False,
    )


def _unadorned(_: Any, level: str, event: dict[str, Any]) -> dict[str, Any]:
    """Leave time and level to what needs a look; all else, and what is in words, looks like other lines."""
    if level == "info":
        del event["timestamp"], event["level"]
    if text := event.pop("text", None):
        event["event"] = f"{event['event']:<{NAME_WIDTH}} {text}"
    return event


def _has_colours() -> bool:
    """Whether stderr is a terminal, and NO_COLOR is not set."""
    if not sys.stderr.isatty():
        return False
    from rich.console import Console

    return not Console(stderr=True).no_color


def logger() -> Any:
    """The package's logger; to stderr, also where nobody configured it."""
    import structlog

    if not structlog.is_configured():
        configure_logging("text")
    return structlog.get_logger("ingestor")
