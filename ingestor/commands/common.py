"""What several commands share: a finding, and the lock of an embedded collection."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ingestor.config.settings import Settings
from ingestor.lock import Lock
from ingestor.running import wiring

if TYPE_CHECKING:
    from rich.console import RenderableType


COLOURS = {"ok": "green", "warn": "bold yellow", "FAIL": "bold red"}


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found out about one thing.

    Attributes:
        verdict: ok, warn (the run may get into trouble) or FAIL (it would end).
        exit_code: that a run would end with.
    """

    name: str
    verdict: str
    detail: str
    exit_code: int = 0

    def __str__(self) -> str:
        return f"{self.verdict:<5}{self.name:<15}{self.detail}"

    def __rich__(self) -> RenderableType:
        """For a terminal: in colour, and wrapped within its column."""
        from rich.table import Table
        from rich.text import Text

        row = Table.grid(padding=(0, 1, 0, 0))
        row.add_column(width=4)
        row.add_column(width=13)
        row.add_column(overflow="fold")
        bold = "bold" if not self.name else ""
        style = COLOURS[self.verdict]
        row.add_row(Text(self.verdict, style), Text(self.name, "bold"), Text(self.detail, bold))
        return row


@contextmanager
def alone(settings: Settings) -> Iterator[None]:
    """Hold the embedded collection's lock: to open its files while a run writes would end that run."""
    path = wiring.engine_lock(settings)
    with Lock.acquire(path) if path and path.exists() else nullcontext():
        yield
