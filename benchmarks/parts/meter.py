"""How busy the GPU was, what ran where, and the line that each benchmark prints."""

from __future__ import annotations

import json
import os
import platform
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np


class BusyMeter:
    """Brackets each forward on the compute stream with CUDA events.

    What it calls busy is the time from a forward's first kernel to its last, gaps between its kernels
    included.
    """

    def __init__(self) -> None:
        import torch

        from ingestor.cuda import CudaDevice

        self._spans: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._zero: tuple[torch.cuda.Event, float] | None = None
        patched: Any = CudaDevice
        compute = patched.compute

        def measured(device: Any, batch: Any, forward: Any) -> Any:
            if self._zero is None:
                event = self._mark(device)
                event.synchronize()
                self._zero = event, time.perf_counter()
            device._compute.wait_event(batch.ready)
            begun = self._mark(device)
            found = compute(device, batch, forward)
            self._spans.append((begun, self._mark(device)))
            return found

        patched.compute = measured

    def reset(self) -> None:
        self._spans.clear()

    def share(self, since: float, until: float) -> float | None:
        """Share of the time between two readings of `perf_counter` that the GPU spent in forwards."""
        if self._zero is None:
            return None
        zero, at = self._zero
        spans = np.array([[zero.elapsed_time(event) for event in span] for span in self._spans]) / 1e3 + at
        inside = np.clip(spans, since, until)
        return round(float((inside[:, 1] - inside[:, 0]).sum() / (until - since)), 4)

    @staticmethod
    def _mark(device: Any) -> Any:
        import torch

        event = torch.cuda.Event(enable_timing=True)
        event.record(device._compute)
        return event


def steady(
    arrivals: list[tuple[float, int]], low: float = 0.15, high: float = 0.95
) -> tuple[float, float, float]:
    """Rows a second between two shares of all rows, and when those were reached; from (time, rows)."""
    times = np.array([at for at, _ in arrivals])
    rows = np.cumsum([count for _, count in arrivals])
    first, last = (int(np.searchsorted(rows, share * rows[-1])) for share in (low, high))
    if last <= first:
        return 0.0, float(times[0]), float(times[-1])
    return (
        float((rows[last] - rows[first]) / (times[last] - times[first])),
        float(times[first]),
        float(times[last]),
    )


def by_second(arrivals: list[tuple[float, int]]) -> list[int]:
    """Rows in each second since the first arrival; from (time, rows)."""
    times, rows = np.array(arrivals).T
    found: list[int] = np.bincount((times - times[0]).astype(int), rows).astype(int).tolist()
    return found


def thread_seconds() -> dict[str, float]:
    """Processor time of this process's threads so far, by name."""
    tick = os.sysconf("SC_CLK_TCK")
    found: dict[str, float] = {}
    for thread in threading.enumerate():
        try:
            fields = Path(f"/proc/self/task/{thread.native_id}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended
        found[thread.name] = round((int(fields[11]) + int(fields[12])) / tick, 2)
    return found


def machine() -> dict[str, Any]:
    """What the figures were read on."""
    import torch

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "gpu": gpu,
        "cores": len(os.sched_getaffinity(0)),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def emit(benchmark: str, **figures: Any) -> None:
    """Print one JSON line."""
    print(json.dumps({"benchmark": benchmark, **figures, "machine": machine()}), flush=True)
