"""Vectors from the device into slots of the shared pool: a batch a slot, or several batches in one."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass

import numpy as np
import torch

from ingestor.buffers import BufferPool, Slot
from ingestor.device import Device, DeviceEmbeddings, Event
from ingestor.records import Points, UpsertRequest

_UNDER_WAY = 2


@dataclass(frozen=True, slots=True)
class _Copy:
    """A copy under way; its source must live until `ended`."""

    source: DeviceEmbeddings
    slot: Slot
    ended: Event


async def copy_out(
    embeddings: AsyncIterator[DeviceEmbeddings], *, buffers: BufferPool, device: Device
) -> AsyncGenerator[UpsertRequest, None]:
    """Copy each batch into a slot of its own; the next copies start before the last one has ended.

    Keeps order, drops nothing. A batch must not have more rows than a slot. Holds up to three slots, and
    never waits for one while it holds them all.
    """
    copies: deque[_Copy] = deque()
    most = min(_UNDER_WAY, buffers.layout.slots - 1)
    async for found in embeddings:
        while len(copies) > most:
            yield await _ended(copies.popleft(), device)
        slot = await buffers.acquire()
        copies.append(_Copy(found, slot, await device.launch(device.download, found, slot)))
    while copies:
        yield await _ended(copies.popleft(), device)


async def copy_out_merged(
    embeddings: AsyncIterator[DeviceEmbeddings], *, buffers: BufferPool, patience_s: float = 1.0
) -> AsyncGenerator[UpsertRequest, None]:
    """Fill each slot with the rows of several small batches, until it is full or `patience_s` old.

    For vectors that lie in the host's memory. Keeps order, drops nothing, holds one slot.
    """
    rows = buffers.layout.rows
    parts: list[Points] = []
    filled, since = 0, 0.0
    async for found in embeddings:
        start = 0
        while start < len(found.points):
            if not parts:
                slot, since = await buffers.acquire(), time.perf_counter()
            end = min(len(found.points), start + rows - filled)
            _fill(slot, filled, found, start, end)
            parts.append(found.points.slice(start, end))
            start, filled = end, filled + end - start
            if filled == rows or time.perf_counter() - since >= patience_s:
                yield _request(slot, Points.join(parts))
                parts, filled = [], 0
    if parts:
        yield _request(slot, Points.join(parts))


async def _ended(copy: _Copy, device: Device) -> UpsertRequest:
    await device.wait(copy.ended)
    return _request(copy.slot, copy.source.points)


def _fill(slot: Slot, row: int, found: DeviceEmbeddings, start: int, end: int) -> None:
    torch.from_numpy(slot.vectors)[row : row + end - start] = found.vectors[start:end]
    torch.from_numpy(slot.flags)[row : row + end - start] = found.flags[start:end]


def _request(slot: Slot, points: Points) -> UpsertRequest:
    refused = np.flatnonzero(slot.flags[: len(points)] == 0)
    return UpsertRequest(slot.index, points, refused.astype(np.int32))
