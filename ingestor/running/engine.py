"""What a run opens once it knows that there is work: processes, buffers, device and encoder."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ProcessPoolExecutor
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ingestor import worker
from ingestor.buffers import BufferPool, free_bytes
from ingestor.config import forms
from ingestor.config.settings import Settings
from ingestor.encoding.calibration import Calibration
from ingestor.encoding.model import ModelSpec
from ingestor.encoding.quality import Quality
from ingestor.encoding.tuning import BYTES_PER_TOKEN, tune
from ingestor.errors import ConfigError
from ingestor.running.wiring import kept_models
from ingestor.telemetry import logger

if TYPE_CHECKING:
    from ingestor.device import Device
    from ingestor.encoding.encoder import Encoder
    from ingestor.encoding.loading import Sample

CPU_TOKEN_BUDGET = 1024
"""Padded tokens in a batch; more is slower, for the activations leave the cache."""
INT8_TOKEN_BUDGET = 2048
GPU_TOKEN_BUDGET = 65_536
HASH_TOKEN_BUDGET = 8_192
FEW_TOKENS_PER_ROW = 128
TOKENS_PER_ROW = 16
"""Before a GPU a slot has a row for so many tokens of the budget; shorter chunks make batches of fewer
tokens.
"""
CPU_SLOT_ROWS = 256
CPU_BLOCK_BYTES = 256 << 10
GPU_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Engine:
    """The encoder's side of a run.

    Attributes:
        device: where the encoder runs.
        encoder: turns batches into vectors.
        buffers: the slots between the device and the sink processes.
        token_budget: tokens in a batch.
        runtime, precision: what computes the model, and how exactly.
        calibration: of an 8-bit model.
        quality: of the vectors, where they are not torch's.
    """

    device: Device
    encoder: Encoder
    buffers: BufferPool
    token_budget: int
    runtime: str
    precision: str
    calibration: Calibration | None
    quality: Quality | None

    @property
    def on_gpu(self) -> bool:
        return self.device.torch_device.type == "cuda"

    def announce(self) -> dict[str, Any]:
        """Log what was chosen, and give it back."""
        chosen = {
            "device": str(self.device.torch_device),
            "runtime": self.runtime,
            "precision": self.precision,
            "batches": "packed" if self.encoder.packed else "padded",
            "token_budget": self.token_budget,
        }
        logger().info("encoder", **chosen)
        return chosen


def cores() -> int:
    return len(os.sched_getaffinity(0))


def prepare_processes(settings: Settings) -> int:
    """How many processes tokenize: few beside an encoder that needs the cores itself, most cores before a
    GPU.
    """
    wanted = settings.pipeline.prepare_processes
    if wanted != "auto":
        return int(wanted)
    return max(1, cores() - 4) if has_gpu(settings) else max(1, cores() // 4)


def sink_processes(settings: Settings) -> int:
    wanted = settings.pipeline.sink_processes
    if wanted != "auto":
        return int(wanted)
    return 2 if settings.qdrant.url and cores() > 4 else 1


def device_of(settings: Settings) -> str:
    """`encoder.device`, or the CPU where nothing else can do what the other settings ask for."""
    encoder = settings.encoder
    return forms.device_of(encoder.device, encoder.runtime, encoder.precision)


def has_gpu(settings: Settings) -> bool:
    """Whether the encoder will run on a GPU, as far as can be told without loading torch."""
    wanted = device_of(settings)
    return wanted.startswith("cuda") or (wanted == "auto" and Path("/dev/nvidiactl").exists())


async def open_workers(stack: AsyncExitStack, processes: int) -> ProcessPoolExecutor:
    """Start the prepare processes' pool; it is ended off the loop."""
    pool = worker.spawn(processes)

    async def close() -> None:
        worker.kill(pool)  # what they have in hand is not wanted any more
        await asyncio.to_thread(pool.shutdown, cancel_futures=True)

    stack.push_async_callback(close)
    return pool


async def open_engine(
    stack: AsyncExitStack,
    settings: Settings,
    spec: ModelSpec,
    *,
    max_tokens: int,
    lock_name: str,
    text_bytes: int,
    stop: asyncio.Event,
    calibration: Calibration | None,
    known: Quality | None,
    sample: Sample,
) -> Engine:
    """Open device and buffers and load the model, with torch imported here for the first time, in a thread.

    Args:
        stack: closes it all.
        settings: the run's.
        spec: the model's.
        max_tokens: in one chunk.
        lock_name: what the run has locked.
        text_bytes: about how much there is to read.
        stop: ends what takes long here.
        calibration: what the collection's 8-bit model was fitted to, if there is one.
        known: what an earlier run has found out about the vectors.
        sample: gives chunks of the run, to fit a model to or to judge one by.

    Raises:
        ConfigError: the token budget is less than one chunk may have, or the device cannot do what is asked.
        EncoderError: the vectors are not good enough.
        ResourceError: there is too little shared memory.
    """
    # It takes seconds, in which the loop is needed.
    await asyncio.to_thread(import_module, "ingestor.encoding.encoder")
    from ingestor.device import open_device
    from ingestor.encoding.loading import Loader
    from ingestor.encoding.trial import fastest

    pools = stack.enter_context(ExitStack())  # closed after the device, which copies into them
    device = open_device(device_of(settings))
    stack.push_async_callback(device.close)
    check_device(settings, device)
    on_gpu = device.torch_device.type == "cuda"
    budget = token_budget(settings, max_tokens, usual_budget(settings, spec, on_gpu=on_gpu))
    wanted_rows = slot_rows(settings, spec.dimension)
    loader = Loader(spec, device, kept_models(settings), stop.is_set)
    loaded = await loader.load(settings.encoder, calibration, sample)
    if settings.encoder.runtime == "auto" and loaded.is_plain and not on_gpu and spec.folder:
        loaded = await fastest(loader, loaded, sample, text_bytes / BYTES_PER_TOKEN)
    quality = await loader.judge(loaded, sample, known, settings.encoder.quality_floor)
    encoder = loaded.encoder
    if on_gpu and spec.folder:
        encoder, budget = await tune(settings, device, encoder, max_tokens, text_bytes, stop)
    slots = settings.pipeline.buffers
    rows = gpu_rows(budget, free_bytes() // (slots * 4 * (spec.dimension + 1))) if on_gpu else CPU_SLOT_ROWS
    buffers = BufferPool.create(lock_name, slots=slots, rows=wanted_rows or rows, dimension=spec.dimension)
    pools.callback(buffers.close)
    await device.register(buffers)
    form = loaded.runtime, loaded.precision, loaded.calibration
    return Engine(device, encoder, buffers, budget, *form, quality)


def check_device(settings: Settings, device: Device) -> None:
    """Refuse a device that cannot do what the settings ask of it.

    Raises:
        ConfigError: names the setting.
    """
    from ingestor.encoding.float8 import demand_device

    if settings.encoder.precision == "fp8":
        demand_device(device.torch_device)
    if settings.encoder.compile == "on" and device.torch_device.type != "cuda":
        raise ConfigError(
            "encoder.compile: on is for CUDA devices, it gains nothing on a CPU; set auto or off"
        )


def gpu_rows(budget: int, room: int) -> int:
    """Vectors in a slot before a GPU: with room for short chunks, and less where shared memory is scarce."""
    return min(budget // TOKENS_PER_ROW, max(room, budget // FEW_TOKENS_PER_ROW))


def usual_budget(settings: Settings, spec: ModelSpec, *, on_gpu: bool) -> int:
    """Tokens in a batch, where the settings leave that open."""
    if on_gpu:
        return GPU_TOKEN_BUDGET
    if not spec.folder:
        return HASH_TOKEN_BUDGET
    return INT8_TOKEN_BUDGET if settings.encoder.precision == "int8" else CPU_TOKEN_BUDGET


def token_budget(settings: Settings, max_tokens: int, usual: int) -> int:
    """Tokens in a batch, never fewer than one chunk may have.

    Raises:
        ConfigError: the settings ask for fewer.
    """
    wanted = settings.encoder.token_budget
    if wanted == "auto":
        return max(usual, max_tokens)
    budget = int(wanted)
    if budget < max_tokens:
        raise ConfigError(
            f"encoder.token_budget: {budget} is less than one chunk may have ({max_tokens} tokens);"
            " raise it or lower chunk.max_tokens"
        )
    return budget


def slot_rows(settings: Settings, dimension: int) -> int | None:
    """Vectors in a slot of the size that the settings ask for; None where they leave it open.

    Raises:
        ConfigError: it has no room for one vector.
    """
    wanted = settings.pipeline.buffer_bytes
    if wanted == "auto":
        return None
    rows = int(wanted) // (4 * dimension)
    if rows < 1:
        raise ConfigError(
            f"pipeline.buffer_bytes: {int(wanted)} bytes hold no vector of {dimension} float32 values;"
            f" set at least {4 * dimension}"
        )
    return rows
