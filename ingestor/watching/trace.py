"""A Chrome trace as torch's profiler writes it: how busy the GPU was; ranges that torch does not know of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ingestor.errors import ConfigError

TRACE = "trace.json"
PROCESS = 999_999_999
"""A number that no process has."""


def busy_time(events: Iterable[dict[str, Any]]) -> tuple[float, float]:
    """How long at least one kernel ran, and how long it was from the first to the last, in microseconds.

    Without a GPU: how long the launch thread computed.
    """
    kernels, computing = [], []
    for event in events:
        if event.get("cat") == "kernel":
            kernels.append((event["ts"], event["ts"] + event["dur"]))
        elif event.get("cat") == "user_annotation" and event["name"] == "compute":
            computing.append((event["ts"], event["ts"] + event["dur"]))
    intervals = sorted(kernels or computing)
    if not intervals:
        return 0.0, 0.0
    busy, reached = 0.0, intervals[0][0]
    for start, end in intervals:
        busy += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return busy, reached - intervals[0][0]


def add_spans(trace: dict[str, Any], spans: Iterable[tuple[str, int, int]], *, rows: Sequence[str]) -> None:
    """Add ranges to a Chrome trace, as a process of their own.

    Args:
        trace: as torch writes it.
        spans: name, start and end, in ns of the system's time.
        rows: the names, from top to bottom.
    """
    base, events = trace.get("baseTimeNanoseconds", 0), trace["traceEvents"]
    events += [_label("process_name", 0, name="stages"), _label("process_sort_index", 0, sort_index=-1)]
    for row, name in enumerate(rows):
        events += [_label("thread_name", row, name=name), _label("thread_sort_index", row, sort_index=row)]
    for name, start, end in spans:
        at = {"ts": (start - base) / 1e3, "dur": (end - start) / 1e3}
        events.append(
            {"ph": "X", "cat": "stage", "name": name, "pid": PROCESS, "tid": rows.index(name), **at}
        )


def _label(what: str, row: int, **values: Any) -> dict[str, Any]:
    return {"ph": "M", "pid": PROCESS, "tid": row, "name": what, "args": values}


def window_of(text: str) -> tuple[int, int]:
    """How many batches to skip and how many to trace, from `SKIP,COUNT`.

    Raises:
        ConfigError: these are not two numbers.
    """
    skip, _, count = text.partition(",")
    if not (skip.isdecimal() and count.isdecimal() and int(count)):
        raise ConfigError(f"--profile-window {text}: should be two numbers of batches, as in 20,20")
    return int(skip), int(count)


def prepare_folder(folder: Path) -> None:
    """Make the folder for a trace, before anything takes long.

    Raises:
        ConfigError: it cannot be made, or not be written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / TRACE).touch()
    except OSError as error:
        raise ConfigError(
            f"--profile {folder}: {error.strerror}; name a folder that can be written to"
        ) from None
