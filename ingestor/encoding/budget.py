"""How many tokens a batch should have: tried out on the device at hand, with the model at hand."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ingestor.device import Device
from ingestor.encoding.encoder import Encoder
from ingestor.records import Batch, no_points

SIZES = tuple(8192 << doublings for doublings in range(6))
SLACK = 0.01
LIMIT_S, LIMIT_OF_WORK = 3.0, 0.1
"""Trying ends after so many seconds, or after this part of what the work itself will take."""
FORWARDS = 3
_MEDIAN_TOKENS, _SIGMA = 81, 0.8  # of a lognormal distribution: mean 112, 95th percentile 304


@dataclass(frozen=True, slots=True)
class Trial:
    """What batches of one size cost.

    Attributes:
        budget: tokens in a batch.
        tokens_per_s: what the encoder ate.
        nbytes: memory that a forward needs beside the weights.
    """

    budget: int
    tokens_per_s: float
    nbytes: int


def sizes_from(least: int) -> list[int]:
    """Sizes worth trying that hold a chunk of `least` tokens."""
    return [size for size in SIZES if size >= least] or [least]


def sweep(
    try_out: Callable[[int], Trial | None],
    *,
    sizes: Sequence[int],
    room: int,
    work_tokens: float = math.inf,
    clock: Callable[[], float] = time.perf_counter,
) -> list[Trial]:
    """Try sizes, each twice the one before, while there is memory and time for the next.

    Args:
        try_out: of a size; None where memory ran out.
        sizes: in tokens.
        room: bytes of memory that a forward may use.
        work_tokens: about how many are to be embedded.
        clock: in seconds.
    """
    trials: list[Trial] = []
    since = clock()
    for budget in sizes:
        started = clock()
        trial = try_out(budget)
        if trial is None:
            break
        trials.append(trial)
        ended = clock()
        limit_s = min(LIMIT_S, LIMIT_OF_WORK * work_tokens / trial.tokens_per_s)
        if 2 * trial.nbytes > room or ended - since + 2 * (ended - started) > limit_s:
            break
    return trials


def choose(trials: Sequence[Trial]) -> Trial:
    """The largest size that is about as fast as the best. Trying out has the interpreter for itself; in a run
    other threads want it, too, and small batches then take longer to issue than to run.
    """
    fast_enough = max(trial.tokens_per_s for trial in trials) * (1 - SLACK)
    return next(trial for trial in reversed(trials) if trial.tokens_per_s >= fast_enough)


def made_up(budget: int, max_tokens: int, *, packed: bool) -> Batch:
    """A batch of about `budget` tokens, of lengths as they are found; where padding counts, of one length."""
    random = np.random.default_rng(budget)
    rows = budget // 16
    lengths = np.full(rows, 112) if not packed else random.lognormal(math.log(_MEDIAN_TOKENS), _SIGMA, rows)
    ends = np.cumsum(np.clip(lengths, 3, max_tokens).astype(np.int64))
    ends = ends[: max(1, int(np.searchsorted(ends, budget, side="right")))]
    tokens = random.integers(5, 100, ends[-1], dtype=np.int32)
    return Batch(tokens, np.concatenate([[0], ends]), no_points(len(ends)))


def sweep_gpu(
    sizes: Sequence[int], *, encoder: Encoder, device: Device, max_tokens: int, work_tokens: float = math.inf
) -> list[Trial]:
    """Try sizes on a GPU, in the launch thread."""
    free, _ = torch.cuda.mem_get_info()
    room = int(0.8 * (free + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()))
    # The first forward of all sets libraries up; none of the sizes shall pay for that.
    try_on_gpu(sizes[0], encoder=encoder, device=device, max_tokens=max_tokens)
    return sweep(
        lambda budget: try_on_gpu(budget, encoder=encoder, device=device, max_tokens=max_tokens),
        sizes=sizes,
        room=room,
        work_tokens=work_tokens,
    )


def try_on_gpu(budget: int, *, encoder: Encoder, device: Device, max_tokens: int) -> Trial | None:
    """Time some forwards, in the launch thread; None where memory ran out."""
    batch = made_up(budget, max_tokens, packed=encoder.packed)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    try:
        _forwards(1, batch, encoder, device)  # libraries set themselves up for new sizes
        since = time.perf_counter()
        _forwards(FORWARDS, batch, encoder, device)
        seconds = time.perf_counter() - since
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        return None
    nbytes = torch.cuda.max_memory_allocated() - before
    return Trial(budget, FORWARDS * len(batch.tokens) / seconds, nbytes)


def _forwards(times: int, batch: Batch, encoder: Encoder, device: Device) -> None:
    for _ in range(times):
        found = device.compute(device.upload(batch), encoder.forward)
    found.ready.synchronize()
