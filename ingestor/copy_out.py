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
from ingestor.errors import EncoderError
from ingestor.records import Points, UpsertRequest

_UNDER_WAY = 2
MANY, MANY_OF_ALL = 50, 0.01
"""So many vectors that cannot be used, and more than this share of all: it is not the documents' fault."""


@dataclass(frozen=True, slots=True)
class _Copy:
    """A copy under way; its source must live until `ended`."""

    source: DeviceEmbeddings
    slot: Slot
    ended: Event


class _Requests:
    """Makes requests of filled slots, and notices when too many of their rows cannot be used."""

    def __init__(self) -> None:
        self._rows = self._refused = 0

    def make(self, slot: Slot, points: Points) -> UpsertRequest:
        refused = np.flatnonzero(slot.flags[: len(points)] == 0)
        self._rows += len(points)
        self._refused += len(refused)
        if self._refused >= MANY and self._refused > MANY_OF_ALL * self._rows:
            raise EncoderError(
                f"{self._refused:,} of the first {self._rows:,} vectors are not finite, or all zero; set"
                " encoder.precision to bfloat16 or float32 (if it is float32, the model itself is broken)"
            )
        return UpsertRequest(slot.index, points, refused.astype(np.int32))


async def copy_out(
    embeddings: AsyncIterator[DeviceEmbeddings], *, buffers: BufferPool, device: Device
) -> AsyncGenerator[UpsertRequest, None]:
    """Copy each batch into a slot of its own; the next copies start before the last one has ended.

    Keeps order, drops nothing. A batch must not have more rows than a slot. Holds up to three slots, and
    never waits for one while it holds them all.

    Raises:
        EncoderError: too many vectors cannot be used.
    """
    requests = _Requests()
    copies: deque[_Copy] = deque()
    most = min(_UNDER_WAY, buffers.layout.slots - 1)
    async for found in embeddings:
        while len(copies) > most:
            yield await _ended(copies.popleft(), device, requests)
        slot = await buffers.acquire()
        copies.append(_Copy(found, slot, await device.launch(device.download, found, slot)))
    while copies:
        yield await _ended(copies.popleft(), device, requests)


async def copy_out_merged(
    embeddings: AsyncIterator[DeviceEmbeddings], *, buffers: BufferPool, patience_s: float = 1.0
) -> AsyncGenerator[UpsertRequest, None]:
    """Fill each slot with the rows of several small batches, until it is full or `patience_s` old.

    For vectors that lie in the host's memory. Keeps order, drops nothing, holds one slot.

    Raises:
        EncoderError: too many vectors cannot be used.
    """
    requests = _Requests()
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
                yield requests.make(slot, Points.join(parts))
                parts, filled = [], 0
    if parts:
        yield requests.make(slot, Points.join(parts))


async def _ended(copy: _Copy, device: Device, requests: _Requests) -> UpsertRequest:
    await device.wait(copy.ended)
    return requests.make(copy.slot, copy.source.points)


def _fill(slot: Slot, row: int, found: DeviceEmbeddings, start: int, end: int) -> None:
    torch.from_numpy(slot.vectors)[row : row + end - start] = found.vectors[start:end]
    torch.from_numpy(slot.flags)[row : row + end - start] = found.flags[start:end]
