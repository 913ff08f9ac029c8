"""Vectors reach slots whole, in order, and rows that cannot be used are named."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from ingestor.buffers import BufferPool
from ingestor.copy_out import copy_out, copy_out_merged
from ingestor.device import DeviceEmbeddings, open_device
from ingestor.errors import EncoderError
from ingestor.records import UpsertRequest
from tests.fakes import stream, token_batch

SIZES = [3, 1, 4, 4, 2, 3, 1, 1]


@pytest.fixture
def buffers(request: pytest.FixtureRequest) -> Iterator[BufferPool]:
    slots = getattr(request, "param", 3)
    pool = BufferPool.create(request.node.name, slots=slots, rows=4, dimension=2, poison=True)
    yield pool
    pool.close()


def embeddings(sizes: list[int], spoiled: tuple[int, ...] = ()) -> list[DeviceEmbeddings]:
    """Row number r of the whole stream is (r + 1, r + 1), or NaN where r is spoiled."""
    device = open_device("cpu", threads=1)
    first, found = 1, []
    for size in sizes:
        batch = device.upload(token_batch([[1]] * size))
        vectors = torch.arange(first, first + size).float()[:, None].repeat(1, 2)
        for row in spoiled:
            vectors[vectors[:, 0] == row + 1] = float("nan")
        found.append(device.compute(batch, lambda batch, vectors=vectors: vectors))
        first += size
    return found


async def drain(stage: AsyncGenerator[UpsertRequest, None], buffers: BufferPool) -> list[np.ndarray]:
    """Reads each slot when its request comes and gives it back, as the sink does."""
    found = []
    async with asyncio.timeout(10):
        async for request in stage:
            slot = buffers._slots[request.slot]
            found.append(slot.vectors[: len(request.points), 0].copy())
            buffers.release(request.slot)
    return found


@pytest.mark.parametrize("buffers", [1, 2, 3, 8], indirect=True)
async def test_a_batch_gets_a_slot(buffers: BufferPool) -> None:
    device = open_device("cpu", threads=1)
    found = await drain(copy_out(stream(embeddings(SIZES)), buffers=buffers, device=device), buffers)
    assert [len(rows) for rows in found] == SIZES
    np.testing.assert_array_equal(np.concatenate(found), np.arange(1, sum(SIZES) + 1))
    await device.close()


@pytest.mark.parametrize("buffers", [1, 3], indirect=True)
async def test_small_batches_fill_a_slot_together(buffers: BufferPool) -> None:
    stage = copy_out_merged(stream(embeddings(SIZES)), buffers=buffers, patience_s=60)
    found = await drain(stage, buffers)
    assert [len(rows) for rows in found] == [4, 4, 4, 4, 3]
    np.testing.assert_array_equal(np.concatenate(found), np.arange(1, sum(SIZES) + 1))


async def test_a_slot_goes_on_when_patience_ends(buffers: BufferPool) -> None:
    stage = copy_out_merged(stream(embeddings([1, 2, 6])), buffers=buffers, patience_s=0)
    assert [len(rows) for rows in await drain(stage, buffers)] == [1, 2, 4, 2]


@pytest.mark.parametrize("merged", [False, True])
async def test_rows_that_cannot_be_used_are_named(buffers: BufferPool, merged: bool) -> None:
    device = open_device("cpu", threads=1)
    source = stream(embeddings([3, 4, 1], spoiled=(1, 3, 7)))
    if merged:
        stage = copy_out_merged(source, buffers=buffers, patience_s=60)
    else:
        stage = copy_out(source, buffers=buffers, device=device)
    refused = []
    async for request in stage:
        assert request.refused.dtype == np.int32
        refused.append(request.refused.tolist())
        buffers.release(request.slot)
    assert refused == ([[1, 3], [3]] if merged else [[1], [0], [0]])
    await device.close()


@pytest.mark.parametrize("merged", [False, True])
@pytest.mark.parametrize(("spoiled", "stops"), [(49, False), (50, True)])
async def test_many_of_them_end_the_run(buffers: BufferPool, merged: bool, spoiled: int, stops: bool) -> None:
    device = open_device("cpu", threads=1)
    source = stream(embeddings([4] * 50, spoiled=tuple(range(100, 100 + spoiled))))
    stage = (
        copy_out_merged(source, buffers=buffers)
        if merged
        else copy_out(source, buffers=buffers, device=device)
    )
    if stops:
        with pytest.raises(EncoderError, match=r"^50 of the first 152 vectors .* encoder.precision to bfl"):
            await drain(stage, buffers)
    else:
        assert len(await drain(stage, buffers)) == 50
    await device.close()


async def test_points_stay_with_their_rows(buffers: BufferPool) -> None:
    first, second = embeddings([3, 3])
    sources = [first, replace(second, points=second.points.take(np.array([2, 1, 0])))]
    payloads = [payload for source in sources for payload in source.points.payloads]
    found: list[bytes] = []
    async for request in copy_out_merged(stream(sources), buffers=buffers, patience_s=60):
        found += request.points.payloads
        buffers.release(request.slot)
    assert found == payloads
