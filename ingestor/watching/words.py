"""How a run is going, in words and in values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ingestor.watching.history import COUNTED
from ingestor.watching.progress import Progress

STILL_S = 10.0
"""That nothing moves is told after so many seconds: the sink may wait for a server."""


def line(progress: Progress) -> str:
    """How the run is going, in one line."""
    tally, rates = progress.tally, progress.rates()
    parts = [f"{progress.done:.0%}"] if progress.done else []
    parts += [
        f"shard {tally.shards_done:,}/{progress.shards_total:,}",
        f"{tally.settled:,} documents",
        *(f"{short(rates[name])} {name}/s" for name in ("documents", "tokens", "points")),
    ]
    if (left := progress.left_s()) is not None:
        parts.append(f"about {duration(left)} left")
    if stage := progress.bottleneck():
        parts.append(f"bottleneck: {stage}")
    return "  ".join([*parts, *troubles(progress)])


def fields(progress: Progress) -> dict[str, Any]:
    """How the run is going, for programs."""
    tally, left = progress.tally, progress.left_s()
    return {
        "seconds": round(progress.elapsed_s, 1),
        "done": round(progress.done, 4),
        "seconds_left": None if left is None else round(left),
        "shards_done": tally.shards_done,
        "shards": progress.shards_total,
        **dict(zip(COUNTED, (tally.settled, tally.chunks, tally.tokens, tally.points), strict=True)),
        **{f"{name}_per_s": round(rate, 1) for name, rate in progress.rates().items()},
        "failed": tally.failed,
        "rejected": tally.rejected_records,
        "shard_errors": len(tally.shard_errors),
        "bottleneck": progress.bottleneck() or None,
        "busy": {name: round(share, 3) for name, share in progress.busy().items()},
        "queues": {name: held for name, (held, _) in progress.stages.fills().items()},
        "waits": {kind: round(seconds, 1) for kind, (_, seconds) in progress.waited().items()},
        "still_s": round(progress.still_s, 1),
        "note": progress.note,
    }


def troubles(progress: Progress) -> Iterator[str]:
    """What is out of the ordinary."""
    tally = progress.tally
    counts = {
        "failed": tally.failed,
        "rejected": tally.rejected_records,
        "shard errors": len(tally.shard_errors),
    }
    yield from (f"{count:,} {name}" for name, count in counts.items() if count)
    for kind, (times, seconds) in progress.waited().items():
        yield f"{kind.replace('_', ' ')} {times:,} x, {duration(seconds)} in all"
    if progress.note:
        yield progress.note
    elif progress.still_s >= STILL_S:
        yield f"nothing has moved for {duration(progress.still_s)}"


def short(number: float) -> str:
    """A number in a few characters."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e4)):
        if number >= size:
            return f"{number / (1e3 if unit == 'k' else size):,.3g} {unit}"
    return f"{number:,.0f}" if number >= 10 or number == 0 else f"{number:.1f}"


def duration(seconds: float) -> str:
    """A time in words, as exact as one wants to know it."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes:02} min"
    return f"{hours // 24} d {hours % 24} h"
