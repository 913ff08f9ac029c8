"""Chunks into batches: back to back for the packed encoder, by length for the padded one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing

import numpy as np
import numpy.typing as npt

from ingestor.records import Batch, ChunkBlock, Int64s, Points


async def pack(
    blocks: AsyncIterator[ChunkBlock], *, token_budget: int, max_rows: int, stop: asyncio.Event
) -> AsyncGenerator[Batch, None]:
    """Cut the stream of chunks into batches of at most `token_budget` tokens and `max_rows` chunks.

    Keeps order. A chunk longer than the budget gets a batch of its own. Once `stop` is set, everything
    upstream is taken and dropped. Holds less than a batch.
    """
    parts: list[Batch] = []
    tokens_left, rows_left = token_budget, max_rows
    async for block in blocks:
        start = 0
        while start < len(block.points) and not stop.is_set():
            end = _last_that_fits(block.offsets, start, tokens_left, rows_left)
            if end == start and not parts:
                end += 1
            if end > start:
                parts.append(_slice(block, start, end))
                tokens_left -= len(parts[-1].tokens)
                rows_left -= end - start
                start = end
            if start < len(block.points):
                yield _join(parts)
                parts, tokens_left, rows_left = [], token_budget, max_rows
    if parts and not stop.is_set():
        yield _join(parts)


async def pack_sorted(
    blocks: AsyncIterator[ChunkBlock],
    *,
    token_budget: int,
    max_rows: int,
    window_tokens: int,
    stop: asyncio.Event,
) -> AsyncGenerator[Batch, None]:
    """Collect a window of chunks, sort it by length, and cut it so that rows x longest stays in the budget.

    Keeps order from window to window only. A window of 64 budgets leaves about 2 % of padding. A chunk
    longer than the budget gets a batch of its own. Once `stop` is set, the rest of the window and
    everything upstream are dropped. Holds a window and a block.
    """
    async with aclosing(_windows(blocks, window_tokens, stop)) as windows:
        async for window in windows:
            for batch in _cut_sorted(window, token_budget, max_rows):
                if stop.is_set():
                    break
                yield batch


async def _windows(
    blocks: AsyncIterator[ChunkBlock], window_tokens: int, stop: asyncio.Event
) -> AsyncGenerator[Batch, None]:
    parts: list[Batch] = []
    async for block in blocks:
        if stop.is_set():
            parts.clear()
        elif len(block.points):
            parts.append(Batch(block.tokens, block.offsets, block.points))
            if sum(len(part.tokens) for part in parts) >= window_tokens:
                window = _join(parts)
                parts.clear()
                yield window
    if parts and not stop.is_set():
        yield _join(parts)


def _last_that_fits(offsets: Int64s, start: int, tokens: int, rows: int) -> int:
    """End of the longest run of chunks from `start` within `tokens` and `rows`."""
    fits = int(np.searchsorted(offsets, offsets[start] + tokens, side="right")) - 1
    return max(start, min(fits, start + rows))


def _cut_sorted(window: Batch, token_budget: int, max_rows: int) -> Iterator[Batch]:
    """Batches of chunks of like length, shortest first."""
    lengths = np.diff(window.offsets)
    order = np.argsort(lengths, kind="stable")
    window, lengths = _reorder(window, order), lengths[order]
    start = 0
    while start < len(lengths):
        longest = lengths[start : start + max_rows]
        padded = np.arange(1, len(longest) + 1) * longest
        end = start + max(1, int(np.searchsorted(padded, token_budget, side="right")))
        yield _slice(window, start, end)
        start = end


def _reorder(batch: Batch, order: npt.NDArray[np.intp]) -> Batch:
    starts, lengths = batch.offsets[:-1][order], np.diff(batch.offsets)[order]
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    source = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)
    return Batch(batch.tokens[source], offsets, batch.points.take(order))


def _slice(source: ChunkBlock | Batch, start: int, end: int) -> Batch:
    offsets = source.offsets[start : end + 1]
    tokens = source.tokens[offsets[0] : offsets[-1]]
    return Batch(tokens, offsets - offsets[0], source.points.slice(start, end))


def _join(parts: list[Batch]) -> Batch:
    if len(parts) == 1:
        return parts[0]
    ends = np.concatenate([[0], np.cumsum([len(part.tokens) for part in parts])])
    offsets = [part.offsets[:-1] + end for part, end in zip(parts, ends[:-1], strict=True)]
    tokens = np.concatenate([part.tokens for part in parts])
    points = Points.join([part.points for part in parts])
    return Batch(tokens, np.concatenate([*offsets, ends[-1:]]), points)
