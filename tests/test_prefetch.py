"""Batches reach the device as they are, in order."""

from __future__ import annotations

import numpy as np

from ingestor.device import open_device
from ingestor.prefetch import prefetch
from tests.fakes import stream, token_batch


async def test_batches_arrive_in_order() -> None:
    device = open_device("cpu", threads=1)
    batches = [token_batch([[1, 2], [3]]), token_batch([[4]]), token_batch([[5, 6, 7], [8], [9, 9]])]
    found = [batch async for batch in prefetch(stream(batches), device=device)]
    assert len(found) == len(batches)
    for there, here in zip(found, batches, strict=True):
        np.testing.assert_array_equal(there.tokens.numpy(), here.tokens)
        np.testing.assert_array_equal(there.offsets.numpy(), here.offsets)
        np.testing.assert_array_equal(there.bounds, here.offsets)
        assert there.points is here.points
    await device.close()


async def test_tokens_that_cannot_be_written_to_are_taken_without_a_warning() -> None:
    device = open_device("cpu", threads=1)
    batch = token_batch([[1, 2]])
    batch.tokens.flags.writeable = False
    [found] = [found async for found in prefetch(stream([batch]), device=device)]
    assert found.tokens.tolist() == [1, 2]
    await device.close()
