"""Batches to the device, ahead of the encoder."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator

from ingestor.device import Device, DeviceBatch
from ingestor.records import Batch


async def prefetch(batches: AsyncIterator[Batch], *, device: Device) -> AsyncGenerator[DeviceBatch, None]:
    """Start each batch's copy to the device; keeps order, drops nothing, holds nothing."""
    async for batch in batches:
        yield await device.launch(device.upload, batch)
