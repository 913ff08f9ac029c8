"""The encode stage: in order, and in halves where memory is too small."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from ingestor.device import DeviceBatch, open_device
from ingestor.encode import encode
from ingestor.encoding.encoder import HashEncoder
from ingestor.errors import EncoderError
from ingestor.prefetch import prefetch
from ingestor.records import Batch
from tests.fakes import stream, token_batch

BATCHES = [[[1, 2, 3], [4], [5, 6, 7, 8]], [[9]], [[1], [2], [3], [4], [5], [6, 7]], [[1] * 9, [2] * 8]]


class Cramped:
    """A hash encoder on a device with memory for `room` tokens."""

    packed = True
    dimension = 16

    def __init__(self, room: int) -> None:
        self._room = room
        self._hash = HashEncoder(self.dimension)
        self.tried: list[int] = []

    def forward(self, batch: DeviceBatch) -> Tensor:
        self.tried.append(len(batch.tokens))
        if len(batch.tokens) > self._room:
            raise torch.OutOfMemoryError
        return self._hash.forward(batch)


async def vectors_by(encoder: Cramped, batches: list[Batch]) -> list[np.ndarray]:
    device = open_device("cpu", threads=1)
    stage = encode(prefetch(stream(batches), device=device), encoder=encoder, device=device)
    try:
        return [found.vectors.numpy() async for found in stage]
    finally:
        await device.close()


async def test_order_is_kept() -> None:
    batches = [token_batch(chunks) for chunks in BATCHES]
    found = await vectors_by(Cramped(1000), batches)
    again = await vectors_by(Cramped(1000), batches[::-1])
    assert [len(vectors) for vectors in found] == [3, 1, 6, 2]
    for vectors, same in zip(found, again[::-1], strict=True):
        np.testing.assert_array_equal(vectors, same)


async def test_batches_are_halved_when_memory_runs_out_and_nothing_is_lost() -> None:
    batches = [token_batch(chunks) for chunks in BATCHES]
    cramped = Cramped(9)
    for vectors, roomy in zip(
        await vectors_by(cramped, batches), await vectors_by(Cramped(1000), batches), strict=True
    ):
        np.testing.assert_array_equal(vectors, roomy)


async def test_the_smaller_size_is_remembered() -> None:
    cramped = Cramped(6)
    chunk = [[1, 2], [3, 4], [5, 6], [7, 8]]
    await vectors_by(cramped, [token_batch(chunk)] * 3)
    assert cramped.tried == [8, 4, 4, 4, 4, 4, 4]


async def test_one_chunk_that_does_not_fit_ends_the_run() -> None:
    with pytest.raises(EncoderError, match=r"one chunk of 9 tokens; lower chunk\.max_tokens"):
        await vectors_by(Cramped(8), [token_batch([[1] * 9])])
