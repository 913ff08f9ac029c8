"""What people see of a run while it goes on: a live display on a terminal, else a line now and then.

The one place that draws.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ingestor.telemetry import LogFormat, logger, repeat, say
from ingestor.watching.history import COUNTED
from ingestor.watching.progress import Progress
from ingestor.watching.words import duration, fields, line, short, troubles

DRAWN_PER_SECOND = 2
PLAIN_INTERVAL_S = 10.0
ROOMY = 56
"""Columns from which on numbers are written out."""
SIDE_BY_SIDE = 84
WIDEST = 100
BAR = 10
ALL_ROWS = 21
"""Rows that all of it needs; a narrow terminal that is lower does without the stages."""


@contextmanager
def show(progress: Progress, *, log_format: LogFormat = "text") -> Iterator[None]:
    """Show how the run is going while the block runs; must be entered inside a running event loop."""
    if log_format == "json":
        log = logger()
        with repeat(PLAIN_INTERVAL_S, lambda: log.info("progress", **fields(progress))):
            yield
    elif console := _live_console():
        with _live(progress, console):
            yield
    else:
        with repeat(PLAIN_INTERVAL_S, lambda: say(line(progress))):
            yield


def _live_console() -> Console | None:
    """The terminal, if stderr is one that can be drawn on."""
    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    return console if sys.stderr.isatty() and not console.is_dumb_terminal else None


@contextmanager
def _live(progress: Progress, console: Console) -> Iterator[None]:
    """Drawn in rich's own thread: it takes some milliseconds, which the event loop needs."""
    with Live(
        Screen(progress),
        console=console,
        refresh_per_second=DRAWN_PER_SECOND,
        transient=True,
        redirect_stdout=False,
    ):
        yield


class Screen:
    """Draws how the run is going each time it is asked."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width, ascii_only = min(options.max_width, WIDEST), options.ascii_only
        yield self._head(width, ascii_only)
        yield self._bar(width)
        yield Text()
        counters, stages = self._counters(width), self._stages(ascii_only)
        if width >= SIDE_BY_SIDE and stages.row_count:
            both = Table.grid(padding=(0, 6, 0, 0))
            both.add_row(counters, stages)
            yield both
        else:
            yield counters
            if stages.row_count and console.size.height >= ALL_ROWS:
                yield Text()
                yield stages
        if said := ", ".join(troubles(self._progress)):
            yield Text("\n" + said, "yellow", overflow="fold")

    def _head(self, width: int, ascii_only: bool) -> RenderableType:
        report = self._progress.report
        minutes, seconds = divmod(int(self._progress.elapsed_s), 60)
        clock = f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"
        arrow = "->" if ascii_only else "→"
        return _row(width, Text(f"{report.collection} {arrow} {report.target}", "bold"), Text(clock, "bold"))

    def _bar(self, width: int) -> RenderableType:
        progress, left = self._progress, self._progress.left_s()
        said = f"{progress.done:4.0%}" if progress.done else "    "
        said += "" if left is None else f"  {duration(left)} left"
        return _row(width, ProgressBar(1.0, progress.done, width=width - len(said) - 1), Text(said))

    def _counters(self, width: int) -> Table:
        tally, rates = self._progress.tally, self._progress.rates()
        table = _table("", ">", ">")
        table.add_row("", Text("total", "dim"), Text("a second", "dim"))
        table.add_row("shards", f"{tally.shards_done:,} of {self._progress.shards_total:,}", "")
        totals = (tally.settled, tally.chunks, tally.tokens, tally.points)
        for name, total in zip(COUNTED, totals, strict=True):
            count = f"{total:,}" if width >= ROOMY else short(total)
            table.add_row(name, count, Text(short(rates[name]), "cyan"))
        return table

    def _stages(self, ascii_only: bool) -> Table:
        """Each stage: how busy it is, and how much waits before it; empty until that is known."""
        full, empty = ("#", ".") if ascii_only else ("█", "░")
        fills, bottleneck = self._progress.stages.fills(), self._progress.bottleneck()
        table = _table("", "", ">", ">")
        for name, share in self._progress.busy().items():
            blocks, held = round(share * BAR), fills.get(name)
            style = "bold yellow" if name == bottleneck else ""
            bar = Text(full * blocks, style or "green").append(empty * (BAR - blocks), "dim")
            queue = Text(f"{held[0]}/{held[1]}" if held else "", "dim")
            if not table.row_count:
                table.add_row(*(Text(said, "dim") for said in ("stage", "busy", "", "queue")))
            table.add_row(Text(name, style), bar, Text(f"{share:.0%}", style), queue)
        return table


def _table(*columns: str) -> Table:
    """Columns side by side; those of `>` are numbers."""
    table = Table.grid(padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(justify="right" if column == ">" else "left", no_wrap=True)
    return table


def _row(width: int, left: RenderableType, right: Text) -> Table:
    """Two things at the ends of a line; the left one gives way."""
    table = Table.grid(padding=(0, 1, 0, 0), expand=False)
    table.width = width
    table.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    table.add_column(justify="right", no_wrap=True)
    table.add_row(left, right)
    return table
