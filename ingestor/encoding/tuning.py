"""What a GPU run decides by measuring at its start: the token budget, and whether to compile the model."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ingestor.config.settings import Settings
from ingestor.records import Shard
from ingestor.telemetry import logger

if TYPE_CHECKING:
    from ingestor.device import Device
    from ingestor.encoding.encoder import Encoder

COMPILING_PAYS_S = 300.0
"""Compiling takes about ten seconds before the first batch; the model is 9 to 18 % faster then. That is won
back after one to two minutes, if all of the work is new and the GPU is what limits it.
"""
COMPILING_EIGHT_BITS_PAYS_S = 60.0
"""The same in eight bits, where a compiled model is 2.5 times as fast."""
BYTES_PER_TOKEN = 5
PACKED_FACTOR = 3
PACKED_NAMES = (".gz", ".bz2", ".zst", ".xz")


async def tune(
    settings: Settings,
    device: Device,
    encoder: Encoder,
    max_tokens: int,
    text_bytes: int,
    stop: asyncio.Event,
) -> tuple[Encoder, int]:
    """Measure which token budget suits the GPU, where the settings do not say; compile where that pays."""
    from ingestor.encoding.budget import choose, sizes_from, sweep_gpu
    from ingestor.encoding.compiling import ROUNDED_COSINE, SAME_COSINE, compile_encoder
    from ingestor.encoding.packed import PackedEncoder

    wanted, compile_ = settings.encoder.token_budget, settings.encoder.compile
    eight_bits = settings.encoder.precision == "fp8"
    sizes = sizes_from(max_tokens) if wanted == "auto" else [int(wanted)]
    trials = await device.launch(
        sweep_gpu,
        sizes,
        encoder=encoder,
        device=device,
        max_tokens=max_tokens,
        work_tokens=text_bytes / BYTES_PER_TOKEN,
    )
    if not trials:
        return encoder, sizes[0]  # the encode stage halves what does not fit
    best = choose(trials)
    logger().info("token budget", tried={trial.budget: round(trial.tokens_per_s) for trial in trials})
    if not compiling_pays(compile_, text_bytes, best.tokens_per_s, eight_bits=eight_bits):
        return encoder, best.budget
    if not isinstance(encoder, PackedEncoder):
        log = logger().warning if compile_ == "on" else logger().info
        log("compile", error="only packed batches are compiled", then="the model runs as it is")
        return encoder, best.budget
    compiled = await compile_encoder(
        encoder,
        device.torch_device,
        tokens=best.budget,
        max_tokens=max_tokens,
        least_cosine=ROUNDED_COSINE if eight_bits else SAME_COSINE,
        stop=stop,
    )
    return compiled, best.budget


def text_bytes_of(shards: Iterable[Shard]) -> int:
    """About how much text there is in some shards."""
    return sum(shard.size * (PACKED_FACTOR if shard.name.endswith(PACKED_NAMES) else 1) for shard in shards)


def compiling_pays(wanted: str, text_bytes: int, tokens_per_s: float, *, eight_bits: bool = False) -> bool:
    """Whether the work, were all of it new, is long enough to win back what compiling costs."""
    if wanted == "auto":
        pays_s = COMPILING_EIGHT_BITS_PAYS_S if eight_bits else COMPILING_PAYS_S
        return text_bytes / BYTES_PER_TOKEN / tokens_per_s >= pays_s
    return wanted == "on"
