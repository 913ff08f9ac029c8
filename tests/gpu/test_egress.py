"""On a GPU: every row reaches its slot, whatever runs beside it, and no stage waits for the device."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Callable
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from ingestor import worker
from ingestor.buffers import BufferLayout, BufferPool, attach
from ingestor.copy_out import copy_out
from ingestor.cuda import CudaDevice
from ingestor.device import Device, DeviceBatch, DeviceEmbeddings, open_device
from ingestor.encode import encode
from ingestor.encoding.encoder import Encoder, HashEncoder, embed, load_encoder
from ingestor.encoding.model import resolve
from ingestor.errors import ResourceError
from ingestor.pack import pack
from ingestor.prefetch import prefetch
from ingestor.records import ChunkBlock, UpsertRequest
from tests.fakes import chunk_block, stream, token_batch
from tests.models import save_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]

ROWS = 500


@cache
def block(number: int, vocabulary: int = 1000) -> ChunkBlock:
    return chunk_block(np.arange(1, 41).repeat(25).tolist(), number=number, vocabulary=vocabulary)


def tokens_of(document: int) -> list[int]:
    source, row = block(document >> 24), document & 0xFFFFFF
    return source.tokens[source.offsets[row] : source.offsets[row + 1]].tolist()


async def requests(
    blocks: int, encoder: Encoder, device: Device, buffers: BufferPool, vocabulary: int = 1000
) -> AsyncIterator[UpsertRequest]:
    batches = pack(
        stream(block(number, vocabulary) for number in range(blocks)),
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


def checksums(layout: BufferLayout, slot: int, rows: int) -> list[int]:
    """Of each row of a slot, as a sink process sees it."""
    vectors = attach(layout).vectors(slot)
    return [zlib.crc32(vectors[row].tobytes()) for row in range(rows)]


async def test_checksums_of_100_000_rows_survive_the_way_to_a_sink_process() -> None:
    device = open_device("cuda")
    encoder = HashEncoder(384, device.torch_device)
    buffers = BufferPool.create("test_checksums", slots=4, rows=ROWS, dimension=384, poison=True)
    await device.register(buffers)
    sink = worker.spawn(1)
    expected: list[list[int]] = []
    compute = device.compute

    def noted(batch: DeviceBatch, forward: Callable[[DeviceBatch], Tensor]) -> DeviceEmbeddings:
        found = compute(batch, forward)
        found.ready.synchronize()
        rows = found.vectors.cpu().numpy()  # another way to the host than the one under test
        expected.append([zlib.crc32(row.tobytes()) for row in rows])
        return found

    device.compute = noted  # type: ignore[method-assign]
    arrived = 0
    async with asyncio.timeout(200):
        async for request in requests(100, encoder, device, buffers):
            work = partial(checksums, buffers.layout, request.slot, len(request.points))
            found = await asyncio.get_running_loop().run_in_executor(sink, work)
            assert found == expected.pop(0)
            arrived += len(found)
            buffers.release(request.slot)
    assert arrived == 100_000
    worker.kill(sink)
    await asyncio.to_thread(sink.shutdown)
    await device.close()
    buffers.close()


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("family", ["hash", "bert", "mpnet"])
async def test_no_stage_waits_for_the_device(family: str, tmp_path: Path) -> None:
    device = open_device("cuda")
    encoder: Encoder = HashEncoder(48, device.torch_device)
    if family != "hash":
        save_model(tmp_path, family)
        encoder = await device.launch(load_encoder, resolve(str(tmp_path / "model")), device=device)
    buffers = BufferPool.create("test_no_sync", slots=4, rows=ROWS, dimension=48)
    await device.register(buffers)
    async for request in requests(1, encoder, device, buffers, vocabulary=140):
        buffers.release(request.slot)  # the first time, libraries set themselves up
    await device.launch(torch.cuda.set_sync_debug_mode, "error")
    try:
        async for request in requests(5, encoder, device, buffers, vocabulary=140):
            buffers.release(request.slot)
    finally:
        await device.launch(torch.cuda.set_sync_debug_mode, "default")
    await device.close()
    buffers.close()


class Greedy:
    """A hash encoder that needs 256 KiB of the device's memory for each token."""

    packed = True

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self.dimension = encoder.dimension
        self.ran_out = 0

    def forward(self, batch: DeviceBatch) -> Tensor:
        try:
            torch.empty((len(batch.tokens), 1 << 18), dtype=torch.uint8, device=batch.tokens.device)
        except torch.OutOfMemoryError:
            self.ran_out += 1
            raise
        return self._encoder.forward(batch)


async def test_memory_that_runs_out_loses_nothing() -> None:
    device, cpu = open_device("cuda"), open_device("cpu")
    encoder, reference = Greedy(HashEncoder(16, device.torch_device)), HashEncoder(16)
    buffers = BufferPool.create("test_memory", slots=4, rows=ROWS, dimension=16, poison=True)
    await device.register(buffers)
    reader = attach(buffers.layout)
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (3 << 28)) / total)
    arrived = 0
    try:
        async for request in requests(5, encoder, device, buffers):
            found = reader.vectors(request.slot)[: len(request.points)]
            chunks = [tokens_of(int(document)) for document in request.points.documents]
            expected = embed(token_batch(chunks), encoder=reference, device=cpu)
            np.testing.assert_allclose(found, expected, atol=1e-6)
            arrived += len(request.points)
            buffers.release(request.slot)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert arrived == 5000
    assert 0 < encoder.ran_out < 10  # the size that fits is remembered
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


async def test_embed_waits_for_a_slow_model() -> None:
    device = open_device("cuda")

    class Slow:
        dimension = 8
        packed = True

        def forward(self, batch: DeviceBatch) -> Tensor:
            torch.cuda._sleep(1_000_000_000)  # cycles, about half a second
            return torch.ones(batch.rows, self.dimension, device=device.torch_device)

    found = await device.launch(embed, token_batch([[1, 2], [3]]), encoder=Slow(), device=device)
    assert (found == 1).all()
    await device.close()
