"""On a GPU: every row reaches its slot, whatever runs beside it, and no stage waits for the device."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import cache

import numpy as np
import pytest
import torch

from ingestor.buffers import BufferPool, attach
from ingestor.copy_out import copy_out
from ingestor.cuda import CudaDevice
from ingestor.device import Device, open_device
from ingestor.encode import encode
from ingestor.encoder import Encoder, HashEncoder, embed
from ingestor.errors import ResourceError
from ingestor.pack import pack
from ingestor.prefetch import prefetch
from ingestor.records import ChunkBlock, UpsertRequest
from tests.fakes import chunk_block, stream, token_batch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]

ROWS = 500


@cache
def block(number: int) -> ChunkBlock:
    return chunk_block(np.arange(1, 41).repeat(25).tolist(), number=number)


def tokens_of(document: int) -> list[int]:
    source, row = block(document >> 24), document & 0xFFFFFF
    return source.tokens[source.offsets[row] : source.offsets[row + 1]].tolist()


async def requests(
    blocks: int, encoder: Encoder, device: Device, buffers: BufferPool
) -> AsyncIterator[UpsertRequest]:
    batches = pack(
        stream(block(number) for number in range(blocks)),
        token_budget=8192,
        max_rows=ROWS,
        stop=asyncio.Event(),
    )
    on_device = prefetch(batches, device=device)
    async for request in copy_out(
        encode(on_device, encoder=encoder, device=device), buffers=buffers, device=device
    ):
        yield request


async def test_100_000_rows_arrive_whole() -> None:
    device, cpu = open_device("cuda"), open_device("cpu")
    encoder, reference = HashEncoder(384, device.torch_device), HashEncoder(384)
    buffers = BufferPool.create("test_egress", slots=4, rows=ROWS, dimension=384, poison=True)
    await device.register(buffers)
    reader = attach(buffers.layout)
    arrived = 0
    async with asyncio.timeout(120):
        async for request in requests(100, encoder, device, buffers):
            found = reader.vectors(request.slot)[: len(request.points)]
            assert len(request.refused) == 0
            chunks = [tokens_of(int(document)) for document in request.points.documents]
            expected = embed(token_batch(chunks), encoder=reference, device=cpu)
            np.testing.assert_allclose(found, expected, atol=1e-6)
            arrived += len(request.points)
            buffers.release(request.slot)
    assert arrived == 100_000
    await device.close()
    buffers.close()


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
async def test_no_stage_waits_for_the_device() -> None:
    device = open_device("cuda")
    encoder = HashEncoder(384, device.torch_device)
    buffers = BufferPool.create("test_no_sync", slots=4, rows=ROWS, dimension=384)
    await device.register(buffers)
    await device.launch(torch.cuda.set_sync_debug_mode, "error")
    try:
        async for request in requests(5, encoder, device, buffers):
            buffers.release(request.slot)
    finally:
        await device.launch(torch.cuda.set_sync_debug_mode, "default")
    await device.close()
    buffers.close()


async def test_memory_that_cuda_cannot_pin_is_a_plain_error() -> None:
    device = open_device("cuda")
    assert isinstance(device, CudaDevice)
    buffers = BufferPool.create("test_pin", slots=1, rows=1, dimension=1)
    await device.register(buffers)
    with pytest.raises(ResourceError, match=r"cannot pin"):
        await device.register(buffers)  # it is pinned already
    await device.close()
    buffers.close()
