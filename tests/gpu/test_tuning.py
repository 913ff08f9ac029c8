"""On a GPU: the token budget is measured, and a compiled model gives the vectors of the one that is not."""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import structlog
import torch

from ingestor.device import open_device
from ingestor.encoding.budget import SIZES, choose, sweep_gpu
from ingestor.encoding.compiling import CompiledEncoder, compile_encoder
from ingestor.encoding.encoder import choose_dtype, embed, load_encoder
from ingestor.encoding.families import PACKED
from ingestor.encoding.model import resolve
from ingestor.encoding.packed import PackedEncoder
from ingestor.records import Batch
from tests.fakes import chunk_block
from tests.models import save_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]


@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore")  # compilers use what is deprecated
@pytest.mark.parametrize("family", PACKED)
async def test_compiled_is_eager(tmp_path: Path, family: str) -> None:
    save_model(tmp_path, family, gentle=True)
    spec = resolve(str(tmp_path / "model"))
    device = open_device("cuda")
    eager = await device.launch(load_encoder, spec, device=device)
    assert isinstance(eager, PackedEncoder)
    half = choose_dtype(spec, device, "auto") == torch.float16
    least = 0.9999 if half else 0.999  # each of the two rounds in its own way
    stop = asyncio.Event()
    with structlog.testing.capture_logs() as logs:
        async with asyncio.timeout(240):
            compiled = await compile_encoder(
                eager, device.torch_device, tokens=8192, max_tokens=120, stop=stop
            )
        assert isinstance(compiled, CompiledEncoder), logs
        for number in range(1, 9):
            lengths = np.random.default_rng(number).integers(1, 120, 40 * number).tolist()
            block = chunk_block(lengths, number=number, vocabulary=140)
            batch = Batch(block.tokens, block.offsets, block.points)
            found = await device.launch(embed, batch, encoder=compiled, device=device)
            expected = await device.launch(embed, batch, encoder=eager, device=device)
            assert float((found * expected).sum(1).min()) >= least
    assert compiled._refusals == 0
    await device.close()


@pytest.mark.parametrize("family", ["bert", "mpnet"])
async def test_the_sweep_is_short(tmp_path: Path, family: str) -> None:
    save_model(tmp_path, family)
    spec = resolve(str(tmp_path / "model"))
    device = open_device("cuda")
    encoder = await device.launch(load_encoder, spec, device=device)
    since = time.monotonic()
    trials = await device.launch(sweep_gpu, SIZES, encoder=encoder, device=device, max_tokens=120)
    assert time.monotonic() - since < 10
    assert len(trials) >= 3
    assert all(later.nbytes > earlier.nbytes for earlier, later in pairwise(trials))
    assert choose(trials).budget in SIZES
    await device.close()


async def test_memory_that_runs_out_ends_the_sweep(tmp_path: Path) -> None:
    save_model(tmp_path, "bert")
    device = open_device("cuda")
    encoder = await device.launch(load_encoder, resolve(str(tmp_path / "model")), device=device)
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (64 << 20)) / total)
    try:
        trials = await device.launch(sweep_gpu, SIZES, encoder=encoder, device=device, max_tokens=120)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert len(trials) < len(SIZES)
    await device.close()
