"""Whether another runtime is worth taking for a long run on a CPU: tried with chunks of the run itself."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from importlib.util import find_spec

from ingestor.encoding.calibration import spread
from ingestor.encoding.loading import OPENVINO, Loaded, Loader, Sample
from ingestor.encoding.quality import SAME_MODEL, cosines
from ingestor.errors import IngestorError
from ingestor.records import Int32s
from ingestor.telemetry import logger

LONG_TOKENS = 2_000_000
"""Fewer are embedded in minutes by a small model, and nothing is tried."""
LONG_S = 600.0
"""Exporting and trying take up to half a minute."""
FASTER = 1.1
ROUNDS = 3
CHUNKS = 64


async def fastest(loader: Loader, loaded: Loaded, sample: Sample, work_tokens: float) -> Loaded:
    """The model in float32 by OpenVINO, where that is installed, exact and measurably faster; else as it was.

    Args:
        loader: loads it.
        loaded: by torch, in float32.
        sample: is asked for chunks where something is tried.
        work_tokens: about how many are to be embedded.
    """
    if work_tokens < LONG_TOKENS or find_spec(OPENVINO) is None:
        return loaded
    chunks = spread(await sample(), CHUNKS)
    if not chunks or work_tokens / await _rate(loader, loaded, chunks) < LONG_S:
        return loaded
    try:
        other = await loader.openvino("float32")
        expected, found = [await loader.embed(form.encoder, chunks) for form in (loaded, other)]
    except IngestorError as error:
        logger().warning("runtime", error=str(error), then="torch")
        return loaded
    lowest = float(cosines(expected, found).min())
    rates = [(await _rate(loader, loaded, chunks), await _rate(loader, other, chunks)) for _ in range(ROUNDS)]
    ratio = statistics.median(theirs / ours for ours, theirs in rates)
    chosen = other if lowest >= SAME_MODEL["float32"] and ratio >= FASTER else loaded
    logger().info(
        "runtime", chosen=chosen.runtime, openvino_to_torch=round(ratio, 2), lowest_cosine=round(lowest, 6)
    )
    return chosen


async def _rate(loader: Loader, form: Loaded, chunks: Sequence[Int32s]) -> float:
    """Tokens a second."""
    since = time.perf_counter()
    await loader.embed(form.encoder, chunks)
    return sum(len(ids) for ids in chunks) / (time.perf_counter() - since)
