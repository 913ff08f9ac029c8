"""How much of the encoder's own speed the pipeline keeps: the packed forward alone against pre-tokenized
blocks through pack, prefetch, encode and copy_out, each slot released at once.

encode.py [--shapes minilm base large] [--budgets 65536 ...] [--seconds 6]
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from parts import material, meter

from ingestor.buffers import BufferPool
from ingestor.channel import Channel, pump
from ingestor.copy_out import copy_out
from ingestor.device import Device, DeviceBatch, open_device
from ingestor.encode import encode
from ingestor.encoding.encoder import Encoder, load_encoder
from ingestor.encoding.model import resolve
from ingestor.pack import pack
from ingestor.prefetch import prefetch
from ingestor.records import Batch, ChunkBlock, Points

BLOCK_ROWS = 1500
SLOTS = 8
GUESS = {"tiny": 100, "minilm": 75_000, "base": 18_000, "large": 6_000}  # documents a second


def make_blocks(documents: int) -> list[ChunkBlock]:
    blocks = []
    for number, start in enumerate(range(0, documents, BLOCK_ROWS)):
        rows = min(BLOCK_ROWS, documents - start)
        random = np.random.default_rng(number)
        offsets = np.concatenate([[0], np.cumsum(material.lengths(rows, number))])
        tokens = random.integers(1000, 30_000, offsets[-1], dtype=np.int32)
        points = Points(np.arange(rows) + (number << 24), np.zeros((rows, 16), np.uint8), [b"{}"] * rows)
        blocks.append(ChunkBlock(number, "shard", tokens, offsets, points))
    return blocks


async def stream(blocks: list[ChunkBlock], times: int) -> AsyncIterator[ChunkBlock]:
    for _ in range(times):
        for block in blocks:
            yield block


async def batches_of(blocks: list[ChunkBlock], budget: int) -> list[Batch]:
    packed = pack(stream(blocks, 1), token_budget=budget, max_rows=budget // 16, stop=asyncio.Event())
    return [batch async for batch in packed]


def forward_alone(device: Device, encoder: Encoder, batches: list[DeviceBatch], times: int) -> float:
    """Seconds for the forward of all batches, whose tokens are on the device; runs in the launch thread."""
    on_gpu = device.torch_device.type == "cuda"
    compute: Any = device
    stream = torch.cuda.stream(compute._compute if on_gpu else None)
    with torch.inference_mode(), stream:
        for batch in batches[:3]:
            encoder.forward(batch)
        if on_gpu:
            torch.cuda.synchronize()
        since = time.perf_counter()
        for _ in range(times):
            for batch in batches:
                encoder.forward(batch)
        if on_gpu:
            torch.cuda.synchronize()
    return time.perf_counter() - since


async def through_stages(
    device: Device, encoder: Encoder, blocks: list[ChunkBlock], times: int, budget: int
) -> list[tuple[float, int]]:
    """When how many vectors lay in a slot; begins with (start, 0)."""
    buffers = BufferPool.create("benchmark", slots=SLOTS, rows=budget // 16, dimension=encoder.dimension)
    await device.register(buffers)
    batches: Channel[Any] = Channel(2)
    on_device: Channel[Any] = Channel(2)
    embeddings: Channel[Any] = Channel(2)
    requests: Channel[Any] = Channel(2)
    packing = pack(stream(blocks, times), token_budget=budget, max_rows=budget // 16, stop=asyncio.Event())
    arrivals = [(time.perf_counter(), 0)]
    async with asyncio.TaskGroup() as group:
        group.create_task(pump(packing, batches))
        group.create_task(pump(prefetch(batches, device=device), on_device))
        group.create_task(pump(encode(on_device, encoder=encoder, device=device), embeddings))
        group.create_task(pump(copy_out(embeddings, buffers=buffers, device=device), requests))
        async for request in requests:
            arrivals.append((time.perf_counter(), len(request.points)))
            buffers.release(request.slot)
    await device.launch(unregister, device)
    buffers.close()
    return arrivals


def unregister(device: Any) -> None:
    if device.torch_device.type == "cuda":
        device._finish()


async def kernel_share(
    device: Device, encoder: Encoder, blocks: list[ChunkBlock], times: int, budget: int, trace: Path | None
) -> dict[str, float]:
    """Where the GPU's time went in a short run, by torch.profiler: share with any kernel, and the longest."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        await through_stages(device, encoder, blocks, times, budget)
    results: Any = profiler.profiler
    kernels = sorted(
        (event.start_ns(), event.duration_ns(), event.name())
        for event in results.kineto_results.events()
        if str(event.device_type()).endswith("CUDA") and not event.name().startswith("Mem")
    )
    first, last = kernels[len(kernels) * 15 // 100][0], kernels[len(kernels) * 95 // 100][0]
    busy, end, by_name = 0, first, dict[str, int]()
    for start, duration, name in kernels:
        if first <= start < last:
            busy += max(0, start + duration - max(start, end))
            end = max(end, start + duration)
            by_name[name[:60]] = by_name.get(name[:60], 0) + duration
    if trace:
        profiler.export_chrome_trace(str(trace))
    top = sorted(by_name.items(), key=lambda entry: -entry[1])[:12]
    return {"busy": round(busy / (last - first), 4)} | {
        name: round(duration / (last - first), 4) for name, duration in top
    }


async def measure(
    shape: str, folder: Path, options: argparse.Namespace, meter_: meter.BusyMeter | None
) -> None:
    device = open_device(options.device)
    spec = resolve(str(material.save_model(shape, folder / shape)))
    encoder = await device.launch(load_encoder, spec, device=device, precision=options.precision)
    documents = int(GUESS[shape] * options.seconds)
    blocks = make_blocks(min(documents, 30_000))
    times = max(1, round(documents / sum(len(block.points) for block in blocks)))
    rows = times * sum(len(block.points) for block in blocks)
    for budget in options.budgets:
        found = await batches_of(blocks, budget)
        there = [await device.launch(device.upload, batch) for batch in found]
        alone = [await device.launch(forward_alone, device, encoder, there, times)]
        await through_stages(device, encoder, blocks[:4], 1, budget)
        if meter_:
            meter_.reset()
        arrivals = await through_stages(device, encoder, blocks, times, budget)
        rate, since, until = meter.steady(arrivals)
        busy = meter_.share(since, until) if meter_ else None
        alone.append(await device.launch(forward_alone, device, encoder, there, times))
        del there
        raw = rows / min(alone)
        whole = rows / (arrivals[-1][0] - arrivals[0][0])
        meter.emit(
            "encode",
            shape=shape,
            budget=budget,
            documents=rows,
            mean_tokens=round(float(np.mean([len(block.tokens) / len(block.points) for block in blocks])), 1),
            forward_alone=[round(rows / seconds) for seconds in alone],
            pipeline_steady=round(rate),
            pipeline_whole=round(whole),
            of_forward_alone=round(rate / raw, 4),
            of_forward_alone_whole=round(whole / raw, 4),
            gpu_busy=busy,
            gpu_busy_is="CUDA events around each forward, 15 % to 95 % of the documents",
        )
        if options.kernels:
            short = max(1, times // 8)
            found_kernels = await kernel_share(device, encoder, blocks, short, budget, options.trace)
            meter.emit("encode_kernels", shape=shape, budget=budget, shares=found_kernels)
    await device.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    cuda = torch.cuda.is_available()
    parser.add_argument("--shapes", nargs="+", default=["minilm", "base", "large"] if cuda else ["tiny"])
    parser.add_argument("--budgets", nargs="+", type=int, default=[65_536] if cuda else [4096])
    parser.add_argument("--seconds", type=float, default=8.0, help="how long a run is about to take")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--kernels", action="store_true", help="also read kernel times with torch.profiler")
    parser.add_argument("--trace", type=Path, help="write the profiler's Chrome trace there")
    options = parser.parse_args()
    meter_ = meter.BusyMeter() if cuda else None
    with tempfile.TemporaryDirectory() as folder:
        for shape in options.shapes:
            asyncio.run(measure(shape, Path(folder), options, meter_))


if __name__ == "__main__":
    main()
