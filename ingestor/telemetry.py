"""Logging, and the one line that says how a run is going."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from ingestor.report import Report

if TYPE_CHECKING:
    from rich.live import Live

LogFormat = Literal["text", "json"]

LIVE_INTERVAL_S = 0.25
PLAIN_INTERVAL_S = 10.0
WINDOW_S = 30.0


@dataclass(slots=True)
class Progress:
    """Running totals that the stages may raise at any time.

    Attributes:
        bottleneck: the stage that the others wait for just now.
        note: what else is going on, in a few words.
        report: the account so far; what a run that fails leaves behind.
    """

    documents: int = 0
    chunks: int = 0
    tokens: int = 0
    points: int = 0
    shards_done: int = 0
    shards_total: int = 0
    bottleneck: str = ""
    note: str = ""
    report: Report = field(default_factory=Report)

    def totals(self) -> tuple[int, int, int]:
        return self.documents, self.tokens, self.points


class Rates:
    """Documents, tokens and points a second, over the last seconds."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._seen = deque([(time.perf_counter(), progress.totals())])

    def now(self) -> tuple[float, float, float]:
        at = time.perf_counter()
        self._seen.append((at, self._progress.totals()))
        while len(self._seen) > 2 and at - self._seen[1][0] > WINDOW_S:
            self._seen.popleft()
        since, before = self._seen[0]
        documents, tokens, points = (
            (new - old) / max(at - since, 1e-9)
            for new, old in zip(self._progress.totals(), before, strict=True)
        )
        return documents, tokens, points


def describe(progress: Progress, rates: Rates) -> str:
    documents, tokens, points = rates.now()
    parts = [
        f"shard {progress.shards_done:,}/{progress.shards_total:,}",
        f"{progress.documents:,} documents",
        f"{short(documents)} documents/s",
        f"{short(tokens)} tokens/s",
        f"{short(points)} points/s",
    ]
    if progress.bottleneck:
        parts.append(f"bottleneck: {progress.bottleneck}")
    return "  ".join([*parts, progress.note] if progress.note else parts)


def short(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.1f}"


@contextmanager
def show_progress(progress: Progress, *, enabled: bool, log_format: LogFormat = "text") -> Iterator[None]:
    """Show how the run is going while the block runs: live on a terminal, else a line now and then.

    Must be entered inside a running event loop.
    """
    if not enabled:
        yield
        return
    rates = Rates(progress)
    if sys.stderr.isatty() and log_format == "text":
        with (
            live_line() as live,
            repeat(LIVE_INTERVAL_S, lambda: live.update(describe(progress, rates), refresh=True)),
        ):
            yield
    elif log_format == "json":
        log = logger()
        with repeat(PLAIN_INTERVAL_S, lambda: log.info("progress", text=describe(progress, rates))):
            yield
    else:
        with repeat(PLAIN_INTERVAL_S, lambda: say(describe(progress, rates))):
            yield


def live_line() -> Live:
    from rich.console import Console
    from rich.live import Live

    return Live(
        console=Console(stderr=True, highlight=False, markup=False), auto_refresh=False, transient=True
    )


@contextmanager
def repeat(interval_s: float, action: Callable[[], None]) -> Iterator[None]:
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


def say(line: str) -> None:
    """One line for people."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def configure_logging(log_format: LogFormat) -> None:
    """Send what is logged to stderr, one line an event, in either form."""
    import structlog

    last: Any = structlog.processors.JSONRenderer()
    if log_format == "text":
        last = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), pad_event_to=0)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="%Y-%m-%dT%H:%M:%S%z", utc=False),
            structlog.processors.format_exc_info,
            last,
        ],
        logger_factory=lambda *_: structlog.WriteLogger(sys.stderr),  # a live line may have replaced it
        cache_logger_on_first_use=False,
    )


def logger() -> Any:
    """The package's logger; to stderr, also where nobody configured it."""
    import structlog

    if not structlog.is_configured():
        configure_logging("text")
    return structlog.get_logger("ingestor")
