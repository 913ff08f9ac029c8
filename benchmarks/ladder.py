"""The egress ladder: a large output of the GPU on its way to other processes, a technique a stage.

A segmentation model gives 1.41 GB of logits a step, and eight processes write them to /dev/null. Stages 0 to
4 are the recipe as published; "project" is this package's pool, device and copy-out, read in place. A rate is
that of the steps as they were consumed, after some to warm up.

ladder.py [--steps 40] [--slow-steps 5] [--checksum]
ladder.py --small              a little network, to try the script; on the CPU without stages 3 and 4
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import queue
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from parts import meter
from torch import Tensor, multiprocessing

from ingestor import worker
from ingestor.buffers import AttachedBuffers, BufferLayout, BufferPool, attach
from ingestor.copy_out import copy_out
from ingestor.device import Device, DeviceEmbeddings, open_device
from ingestor.records import Points

CLASSES, CONSUMERS, SLOTS, WARM_UP = 21, 8, 8, 4
CUDA = torch.cuda.is_available()
Images = Iterator[Tensor]
Step = Callable[[], Tensor]


class Noise(torch.utils.data.Dataset[Tensor]):
    def __init__(self, side: int) -> None:
        self._side = side

    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, _: int) -> Tensor:
        return torch.rand(3, self._side, self._side)


def build_model(small: bool) -> Any:
    if small:
        return torch.nn.Conv2d(3, CLASSES, 3, padding=1)
    from torchvision.models.segmentation import deeplabv3_resnet50

    model = deeplabv3_resnet50(weights=None, weights_backbone=None, num_classes=CLASSES)
    return torch.nn.Sequential(model, Out())


class Out(torch.nn.Module):
    def forward(self, found: dict[str, Tensor]) -> Tensor:
        return found["out"]


def endless(batch: int, side: int, small: bool) -> Images:
    workers = 1 if small else 8
    order = itertools.repeat(0, 1 << 30)
    return iter(
        torch.utils.data.DataLoader(
            Noise(side),
            batch_size=batch,
            sampler=order,
            num_workers=workers,
            pin_memory=CUDA,
            prefetch_factor=3,
        )  # type: ignore[arg-type]
    )


def rate(times: list[float], skip: int = WARM_UP) -> float:
    """Steps a second after the first `skip`, from when each was done."""
    times = sorted(times)
    return (len(times) - skip) / (times[-1] - times[skip - 1])


def forward_only(step: Step, steps: int) -> float:
    events = []
    for _ in range(WARM_UP + steps):
        step()
        events.append(mark())
    if not CUDA:
        return rate(events)
    events[-1].synchronize()
    return steps / events[WARM_UP - 1].elapsed_time(events[-1]) * 1e3


def mark() -> Any:
    if not CUDA:
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def in_line(step: Step, steps: int) -> float:
    times = []
    with open("/dev/null", "wb") as null:
        for _ in range(WARM_UP + steps):
            null.write(step().cpu().numpy().tobytes())
            times.append(time.perf_counter())
    return rate(times)


class Recipe:
    """Stages 1 to 4: eight processes that copy what they get, and buffers that were pinned, then shared."""

    def __init__(self, like: Tensor) -> None:
        context = multiprocessing.get_context("spawn")
        self._pool = [torch.empty(like.shape, pin_memory=CUDA).share_memory_() for _ in range(SLOTS)]
        self._filled, self._free, self._done = context.Queue(CONSUMERS), context.Queue(), context.Queue()
        for index in range(SLOTS):
            self._free.put(index)
        arguments = self._pool, self._filled, self._free, self._done
        self._processes = [context.Process(target=consume, args=arguments) for _ in range(CONSUMERS)]
        self._egress = torch.cuda.Stream() if CUDA else None
        for process in self._processes:
            process.start()

    def to_processes(self, step: Step, steps: int) -> float:
        for _ in range(WARM_UP + steps):
            self._filled.put(step().cpu())
        return self._rate(steps)

    def into_buffers(self, step: Step, steps: int) -> float:
        for _ in range(WARM_UP + steps):
            logits, index = step(), self._free.get()
            self._pool[index].copy_(logits)
            self._filled.put(index)
        return self._rate(steps)

    def asynchronously(self, step: Step, steps: int, *, own_stream: bool = False) -> float:
        under_way: queue.Queue[Any] = queue.Queue()
        waiter = threading.Thread(target=self._wait, args=(under_way,))
        waiter.start()
        for _ in range(WARM_UP + steps):
            logits, index = step(), self._free.get()
            stream = self._egress if own_stream else torch.cuda.current_stream()
            if own_stream:
                stream.wait_stream(torch.cuda.current_stream())
                logits.record_stream(stream)
            with torch.cuda.stream(stream):
                self._pool[index].copy_(logits, non_blocking=True)
                event = torch.cuda.Event()
                event.record()
            under_way.put((event, index))
        under_way.put(None)
        waiter.join()
        return self._rate(steps)

    def close(self) -> None:
        for _ in self._processes:
            self._filled.put(None)
        for process in self._processes:
            process.join()

    def _wait(self, under_way: queue.Queue[Any]) -> None:
        while (found := under_way.get()) is not None:
            event, index = found
            event.synchronize()
            self._filled.put(index)

    def _rate(self, steps: int) -> float:
        times = [self._done.get() for _ in range(WARM_UP + steps)]
        # The free slots of the start are filled without waiting for a consumer.
        return rate(times, skip=SLOTS + WARM_UP if steps > 2 * SLOTS else WARM_UP)


def consume(pool: list[Tensor], filled: Any, free: Any, done: Any) -> None:
    """A consumer process of the recipe."""
    torch.set_num_threads(1)
    with open("/dev/null", "wb") as null:
        while (found := filled.get()) is not None:
            logits = pool[found] if isinstance(found, int) else found
            null.write(logits.numpy().tobytes())
            if isinstance(found, int):
                free.put(found)
            del logits
            done.put(time.perf_counter())


async def project(step: Step, steps: int, *, checksum: bool) -> float:
    device = open_device("auto")
    example = await device.launch(step)
    batch = len(example)
    buffers = BufferPool.create("ladder", slots=SLOTS, rows=batch, dimension=example.numel() // batch)
    await device.register(buffers)
    consumers = worker.spawn(CONSUMERS)
    loop, times = asyncio.get_running_loop(), list[float]()

    async def read(slot: int) -> None:
        expected = await loop.run_in_executor(consumers, read_in_place, buffers.layout, slot, checksum)
        assert not checksum or expected
        buffers.release(slot)
        times.append(time.perf_counter())

    warm = [
        loop.run_in_executor(consumers, read_in_place, buffers.layout, 0, False) for _ in range(CONSUMERS)
    ]
    await asyncio.wait(warm)
    async with asyncio.TaskGroup() as group:
        logits = forwards(step, WARM_UP + steps, device)
        async for request in copy_out(logits, buffers=buffers, device=device):
            group.create_task(read(request.slot))
    await device.close()
    buffers.close()
    consumers.shutdown()
    return rate(times)


async def forwards(step: Step, steps: int, device: Device) -> AsyncIterator[DeviceEmbeddings]:
    def launch() -> DeviceEmbeddings:
        logits = step().flatten(1)
        rows = len(logits)
        flags = torch.ones(rows, dtype=torch.uint8, device=logits.device)
        points = Points(np.arange(rows), np.zeros((rows, 16), np.uint8), [b""] * rows)
        return DeviceEmbeddings(logits, flags, points, Marked() if not CUDA else plain_event())

    for _ in range(steps):
        yield await device.launch(launch)


class Marked:
    def synchronize(self) -> None:
        pass


def plain_event() -> Any:
    event = torch.cuda.Event(blocking=True)
    event.record()
    return event


@lru_cache(maxsize=1)
def attached(layout: BufferLayout) -> AttachedBuffers:
    return attach(layout)


def read_in_place(layout: BufferLayout, slot: int, checksum: bool) -> float:
    """A consumer of the project's: writes a slot to /dev/null where it lies, or adds up all its values."""
    vectors = attached(layout).vectors(slot)
    if checksum:
        return float(np.sum(vectors.view(np.uint32).ravel(), dtype=np.uint64))
    with open("/dev/null", "wb", buffering=0) as null:
        null.writelines(vectors[start : start + 8] for start in range(0, len(vectors), 8))
    return 1.0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--steps", type=int, default=40, help="timed steps")
    parser.add_argument("--slow-steps", type=int, default=6, help="timed steps of stages 0 and 1")
    parser.add_argument("--checksum", action="store_true", help="also with consumers that read every byte")
    options = parser.parse_args()
    batch, side = (2, 64) if options.small else (64, 512)
    images = endless(batch, side, options.small)
    model = build_model(options.small).eval().to("cuda" if CUDA else "cpu")

    def step() -> Tensor:
        with torch.inference_mode():
            found: Tensor = model(next(images).to("cuda" if CUDA else "cpu", non_blocking=True))
            return found

    rates = {"forward only": forward_only(step, options.steps)}
    rates["0 .cpu(), consumed in line"] = in_line(step, options.slow_steps)
    recipe = Recipe(step())
    rates["1 consumer processes"] = recipe.to_processes(step, options.slow_steps)
    rates["2 shared buffers"] = recipe.into_buffers(step, options.steps)
    if CUDA:
        rates["3 copy without waiting"] = recipe.asynchronously(step, options.steps)
        rates["4 egress stream"] = recipe.asynchronously(step, options.steps, own_stream=True)
    recipe.close()
    del recipe
    rates["project"] = asyncio.run(project(step, options.steps, checksum=False))
    if options.checksum:
        rates["project, every byte read"] = asyncio.run(project(step, options.steps, checksum=True))
    rates["forward only, again"] = forward_only(step, options.steps)
    show(rates)


def show(rates: dict[str, float]) -> None:
    limit, baseline = rates["forward only"], rates["0 .cpu(), consumed in line"]
    for name, found in rates.items():
        shares = f"{found / limit:>8.3f} of the limit{found / baseline:>8.2f} x baseline"
        print(f"{name:30}{found:>8.3f} steps/s{shares}", file=sys.stderr)
    meter.emit(
        "ladder",
        steps_per_s={name: round(found, 4) for name, found in rates.items()},
        of_forward_only=round(rates["project"] / limit, 4),
        of_baseline=round(rates["project"] / baseline, 2),
    )


if __name__ == "__main__":
    main()
