"""Batches by token budget: nothing lost, nothing too large, order where it is promised."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingestor.pack import pack, pack_sorted
from ingestor.records import Batch, ChunkBlock, Points
from tests.fakes import chunk_block, stream

Chunk = tuple[tuple[int, ...], int, bytes, bytes]
LENGTHS = st.lists(st.lists(st.integers(1, 40), max_size=12), max_size=6)


def chunks_of(block: ChunkBlock | Batch) -> list[Chunk]:
    points = block.points
    return [
        (
            tuple(block.tokens[block.offsets[i] : block.offsets[i + 1]].tolist()),
            int(points.documents[i]),
            points.ids[i].tobytes(),
            points.payloads[i],
        )
        for i in range(len(points))
    ]


def blocks_of(lengths: list[list[int]]) -> list[ChunkBlock]:
    return [chunk_block(row, number=number) for number, row in enumerate(lengths)]


async def packed(blocks: list[ChunkBlock], budget: int, rows: int) -> list[Batch]:
    stages = pack(stream(blocks), token_budget=budget, max_rows=rows, stop=asyncio.Event())
    return [batch async for batch in stages]


async def packed_sorted(blocks: list[ChunkBlock], budget: int, rows: int, window: int) -> list[Batch]:
    stop = asyncio.Event()
    stage = pack_sorted(stream(blocks), token_budget=budget, max_rows=rows, window_tokens=window, stop=stop)
    return [batch async for batch in stage]


@settings(deadline=None, max_examples=200)
@given(LENGTHS, st.integers(1, 100), st.integers(1, 10))
def test_packing_loses_nothing_and_keeps_order(lengths: list[list[int]], budget: int, rows: int) -> None:
    blocks = blocks_of(lengths)
    batches = asyncio.run(packed(blocks, budget, rows))
    assert [c for batch in batches for c in chunks_of(batch)] == [c for b in blocks for c in chunks_of(b)]
    for batch in batches:
        assert 1 <= len(batch.points) <= rows
        assert len(batch.tokens) <= budget or len(batch.points) == 1
        assert batch.offsets[0] == 0
        assert batch.offsets[-1] == len(batch.tokens)


@settings(deadline=None, max_examples=200)
@given(LENGTHS, st.integers(1, 100), st.integers(1, 10), st.integers(1, 400))
def test_sorted_packing_loses_nothing(lengths: list[list[int]], budget: int, rows: int, window: int) -> None:
    blocks = blocks_of(lengths)
    batches = asyncio.run(packed_sorted(blocks, budget, rows, window))
    found = sorted(c for batch in batches for c in chunks_of(batch))
    assert found == sorted(c for b in blocks for c in chunks_of(b))
    for batch in batches:
        longest = int(np.diff(batch.offsets).max())
        assert 1 <= len(batch.points) <= rows
        assert len(batch.points) * longest <= budget or len(batch.points) == 1


async def test_packed_batches_are_full() -> None:
    batches = await packed(blocks_of([[4] * 10, [4] * 10]), 16, 100)
    assert [len(batch.points) for batch in batches] == [4, 4, 4, 4, 4]


async def test_sorting_leaves_little_padding() -> None:
    random = np.random.default_rng(3)
    lengths = np.clip(random.lognormal(4.4, 0.8, 2000), 3, 254).astype(int).tolist()
    batches = await packed_sorted(blocks_of([lengths]), 768, 256, 1)
    padded = sum(len(b.points) * int(np.diff(b.offsets).max()) for b in batches)
    assert sum(lengths) / padded > 0.98


async def test_windows_come_in_order() -> None:
    blocks = blocks_of([[5, 1, 3], [9, 7, 8], [2]])
    batches = await packed_sorted(blocks, 10, 1, 9)
    assert [len(batch.tokens) for batch in batches] == [1, 3, 5, 7, 8, 9, 2]


@pytest.mark.parametrize("sort", [False, True])
async def test_a_stop_drops_what_is_upstream_and_takes_it(sort: bool) -> None:
    stop = asyncio.Event()
    blocks = stream(blocks_of([[4] * 6] * 5))
    if sort:
        stage = pack_sorted(blocks, token_budget=8, max_rows=9, window_tokens=20, stop=stop)
    else:
        stage = pack(blocks, token_budget=8, max_rows=9, stop=stop)
    batches = []
    async for batch in stage:
        batches.append(batch)
        stop.set()
    assert len(batches) == 1
    assert [block async for block in blocks] == []


async def test_empty_blocks_make_no_batches() -> None:
    empty = ChunkBlock(
        0,
        "s",
        np.empty(0, np.int32),
        np.zeros(1, np.int64),
        Points(np.empty(0, np.int64), np.empty((0, 16), np.uint8), []),
    )
    assert await packed([empty, empty], 8, 8) == []
    assert await packed_sorted([empty, empty], 8, 8, 8) == []
