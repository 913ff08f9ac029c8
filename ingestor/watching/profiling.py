"""What `--profile` shows: where the time of some batches went, stage by stage and kernel by kernel.

nvtx ranges for Nsight Systems, and a Chrome trace of torch's own profiler with the stages added to it.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

import orjson

from ingestor.telemetry import logger
from ingestor.watching.spans import Span
from ingestor.watching.trace import TRACE, add_spans, busy_time

if TYPE_CHECKING:
    from ingestor.device import Device

P = ParamSpec("P")
T = TypeVar("T")

COLOURS = {
    "read": "grey",
    "prepare": "yellow",
    "pack": "orange",
    "get batch": "cyan",
    "compute": "green",
    "copy to CPU": "blue",
    "upsert": "purple",
    "settle": "red",
}
STAGES = {"prefetch": "get batch", "encode": "compute", "copy_out": "copy to CPU"}
"""How the ranges of a stage are called where that is not its own name."""
ISSUED = {"upload": "get batch", "compute": "compute", "download": "copy to CPU"}
"""What the launch thread does for them."""


class Profile:
    """Ranges around the work of all stages, and a recording of some batches.

    Args:
        folder: for the trace.
        skip: batches that go through the encoder before the recording begins.
        count: batches that are recorded.
    """

    def __init__(self, folder: Path, skip: int, count: int) -> None:
        import nvtx

        self._folder, self._skip, self._count = folder, skip, count
        self._domain = nvtx.get_domain("ingestor")
        self._attributes = {
            name: self._domain.get_event_attributes(message=name, color=colour)
            for name, colour in COLOURS.items()
        }
        self._batches = 0
        self._recorder: Any = None
        self._recorded = 0
        self._device: Device | None = None
        self.recording = False
        self.spans: list[tuple[str, int, int]] = []  # name, start and end in ns of the system's time

    def watch(self, device: Device) -> Device:
        """The device, with a range around all that its launch thread issues for a batch."""
        self._device = device
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # its messages would mix with ours
        if not self._under_nsight:
            with self._torch_profiler():
                pass  # it sets itself up once, and complains in any thread but the one that imported torch
        return cast("Device", _WatchedDevice(device, self))

    def span(self, stage: str) -> Span:
        """For a stage's ranges."""
        return Span(STAGES.get(stage, stage), self)

    def start(self, name: str) -> Any:
        """Open a range that may stay open over an await."""
        return self._domain.start_range(self._attributes[name])

    def end(self, name: str, opened: Any, since: int) -> None:
        """Close it; `since` is when it was opened, in ns of the system's time."""
        self._domain.end_range(opened)
        if self.recording:
            self.spans.append((name, since, time.time_ns()))

    def issue(self, name: str, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `work` in the launch thread; counts batches, and records those of the window."""
        from torch.profiler import record_function

        if name == "compute":
            if self._batches == self._skip:
                self._begin()
            elif self._batches == self._skip + self._count:
                self._stop()
            self._batches += 1
        self._domain.push_range(self._attributes[name])
        try:
            with record_function(name):
                return work(*args, **kwargs)
        finally:
            self._domain.pop_range()

    async def stop(self) -> None:
        """Record no further; before the device is closed."""
        if self._device is not None:
            await self._device.launch(self._stop)

    async def close(self) -> None:
        """Write the trace and say what it shows."""
        if not self._recorded:
            error = f"the run had only {self._batches} batches, which --profile-window skips"
            logger().warning("profile", error=error)
        elif self._recorder is None:
            logger().info("profile", batches=self._recorded, recorded_by="Nsight Systems")
        else:
            await asyncio.to_thread(self._write)

    def _begin(self) -> None:
        import torch

        if not self._under_nsight:
            self._recorder = self._torch_profiler()
            self._recorder.start()
        if self._on_gpu:
            torch.cuda.cudart().cudaProfilerStart()
        self.recording = True

    def _stop(self) -> None:
        if not self.recording:
            return
        self.recording = False
        self._recorded = min(self._count, self._batches - self._skip)
        if self._on_gpu:
            import torch

            torch.cuda.synchronize()
            torch.cuda.cudart().cudaProfilerStop()
        if self._recorder is not None:
            self._recorder.stop()

    def _torch_profiler(self) -> Any:
        from torch.profiler import ProfilerActivity, profile

        activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * self._on_gpu
        return profile(activities=activities, acc_events=True)  # else it warns of lost ones

    @property
    def _under_nsight(self) -> bool:
        """Then torch's own profiler stays off: only one of them can watch the GPU."""
        return "NSYS_PROFILING_SESSION_ID" in os.environ

    @property
    def _on_gpu(self) -> bool:
        return self._device is not None and self._device.torch_device.type == "cuda"

    def _write(self) -> None:
        path = self._folder / TRACE
        self._recorder.export_chrome_trace(str(path))
        trace = orjson.loads(path.read_bytes())
        busy, window = busy_time(trace["traceEvents"])
        add_spans(trace, self.spans, rows=list(COLOURS))
        path.write_bytes(orjson.dumps(trace))
        shares = {"gpu_busy" if self._on_gpu else "encoder_busy": round(busy / window, 3) if window else 0.0}
        logger().info(
            "profile", trace=str(path), batches=self._recorded, window_s=round(window / 1e6, 3), **shares
        )


class _WatchedDevice:
    """A device whose launches are seen; all else is the device's own."""

    def __init__(self, device: Device, profile: Profile) -> None:
        self._device, self._profile = device, profile

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    async def launch(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        name = ISSUED.get(getattr(work, "__name__", ""))
        if name is None:
            return await self._device.launch(work, *args, **kwargs)
        return await self._device.launch(self._profile.issue, name, work, *args, **kwargs)  # type: ignore[arg-type]
