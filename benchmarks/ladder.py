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
import sys
import time
from collections.abc import AsyncIterator, Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from parts import meter
from parts.recipe import CONSUMERS, CUDA, SLOTS, WARM_UP, Recipe, Step, in_line, rate
from torch import Tensor

from ingestor import worker
from ingestor.buffers import AttachedBuffers, BufferLayout, BufferPool, attach
from ingestor.copy_out import copy_out
from ingestor.device import DONE, Device, DeviceEmbeddings, Event, open_device
from ingestor.records import Points

CLASSES = 21
Images = Iterator[Tensor]


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
        )
    )


def forward_only(step: Step, steps: int) -> float:
    events = []
    for _ in range(WARM_UP + steps):
        step()
        events.append(mark())
    if not CUDA:
        return rate(events)
    events[-1].synchronize()
    seconds: float = events[WARM_UP - 1].elapsed_time(events[-1]) / 1e3
    return steps / seconds


def mark() -> Any:
    if not CUDA:
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


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
        return DeviceEmbeddings(logits, flags, points, plain_event() if CUDA else DONE)

    for _ in range(steps):
        yield await device.launch(launch)


def plain_event() -> Event:
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
        null.writelines(vectors[start : start + 8].data for start in range(0, len(vectors), 8))
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
