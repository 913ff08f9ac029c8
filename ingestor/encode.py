"""Batches through the encoder, in smaller parts where the device's memory is too small for a whole one."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, AsyncIterator

import torch
from torch import Tensor

from ingestor.device import Device, DeviceBatch, DeviceEmbeddings
from ingestor.encoding.encoder import Encoder
from ingestor.errors import EncoderError


async def encode(
    on_device: AsyncIterator[DeviceBatch], *, encoder: Encoder, device: Device
) -> AsyncGenerator[DeviceEmbeddings, None]:
    """Start the forward of each batch; keeps order, drops nothing, holds nothing.

    Raises:
        EncoderError: the memory is too small for a single chunk.
    """
    parts = _Parts(encoder)
    async for batch in on_device:
        yield await device.launch(device.compute, batch, parts.forward)


class _Parts:
    """Halves batches that do not fit into memory, and remembers how large they may be from then on."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._most_tokens = sys.maxsize

    def forward(self, batch: DeviceBatch) -> Tensor:
        if len(batch.tokens) <= self._most_tokens or batch.rows == 1:
            vectors = self._try(batch)
            if vectors is not None:
                return vectors
            self._most_tokens = len(batch.tokens) // 2
            torch.cuda.empty_cache()
        if batch.rows == 1:
            raise EncoderError(
                f"the device's memory is too small for one chunk of {len(batch.tokens)} tokens;"
                " lower chunk.max_tokens or take a smaller encoder.precision"
            )
        middle = batch.rows // 2
        halves = [batch.slice(0, middle), batch.slice(middle, batch.rows)]
        return torch.cat([self.forward(half) for half in halves])

    def _try(self, batch: DeviceBatch) -> Tensor | None:
        """None if memory ran out; what the failed forward had allocated is free again on return."""
        try:
            return self._encoder.forward(batch)
        except torch.OutOfMemoryError:
            return None
