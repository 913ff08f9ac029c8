"""Small stand-ins that tests of several modules share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import TypeVar

import numpy as np

from ingestor.records import Batch, ChunkBlock, Points

T = TypeVar("T")


async def stream(items: Iterable[T]) -> AsyncIterator[T]:
    """Yield `items` one by one, as a channel would."""
    for item in items:
        yield item


def chunk_block(lengths: Sequence[int], *, number: int = 0, vocabulary: int = 1000) -> ChunkBlock:
    """A block with a chunk of random tokens for each of `lengths`; every chunk a document of its own."""
    random = np.random.default_rng(number)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    tokens = random.integers(5, vocabulary, offsets[-1], dtype=np.int32)
    rows = len(lengths)
    documents = np.arange(rows, dtype=np.int64) + (number << 24)
    payloads = [f"{number}/{row}".encode() for row in range(rows)]
    ids = random.integers(0, 256, (rows, 16), dtype=np.uint8)
    return ChunkBlock(number, "shard", tokens, offsets, Points(documents, ids, payloads))


def token_batch(chunks: Sequence[Sequence[int]]) -> Batch:
    """A batch of chunks with these token ids; every chunk a document of its own."""
    block = chunk_block([len(chunk) for chunk in chunks])
    tokens = np.array([token for chunk in chunks for token in chunk], np.int32)
    return Batch(tokens, block.offsets, block.points)
