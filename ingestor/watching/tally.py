"""What a run counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
import numpy.typing as npt

from ingestor.records import Batch, ChunkBlock, Failure

FAILURES_KEPT = 100
WARNINGS_KEPT = 5
"""So many of a kind are told of a shard in full; the others are counted."""


class Histogram:
    """How often each whole number came; numbers of `most` and more count as one.

    Attributes:
        counts: int64[most + 1].
    """

    def __init__(self, most: int = 8192) -> None:
        self.counts = np.zeros(most + 1, np.int64)

    def add(self, numbers: npt.NDArray[np.integer]) -> None:
        """Count int[n], none of them negative."""
        most = len(self.counts) - 1
        found = np.bincount(np.minimum(numbers, most))
        self.counts[: len(found)] += found


@dataclass(slots=True)
class Tally:
    """What a run did so far, in documents unless the name says otherwise.

    Attributes:
        rejected: records and documents that were refused, by kind; `rejected_records` of them before they
            were documents.
        chunks, tokens: that went to the encoder; `padding` went there, too, and is not among the tokens.
        tokens_found: in the chunks that were made.
        chunk_tokens, document_chunks: how long chunks and documents are.
        taken: bytes of the shards, as they lie on disk.
        warnings: (shard, kind, detail), the first few of a kind; `warned` counts them all.
    """

    read: int = 0
    indexed: int = 0
    unchanged: int = 0
    duplicates: int = 0
    failed: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    rejected: Counter[str] = field(default_factory=Counter)
    rejected_records: int = 0
    chunks: int = 0
    tokens: int = 0
    padding: int = 0
    tokens_found: int = 0
    chunk_tokens: Histogram = field(default_factory=Histogram)
    document_chunks: Histogram = field(default_factory=lambda: Histogram(1024))
    batches: int = 0
    points: int = 0
    points_deleted: int = 0
    replaced_characters: int = 0
    taken: int = 0
    shards_done: int = 0
    shard_errors: list[tuple[str, str, str]] = field(default_factory=list)
    warnings: list[tuple[str, str, str]] = field(default_factory=list)
    refused: list[Failure] = field(default_factory=list)
    warned: Counter[tuple[str, str]] = field(default_factory=Counter)

    @property
    def settled(self) -> int:
        """Documents that need nothing more."""
        return self.indexed + self.unchanged + self.duplicates + self.failed

    def encode(self, part: Batch | ChunkBlock, *, packed: bool) -> None:
        """Count what goes to the encoder; if not packed, every chunk takes as much room as the longest."""
        lengths = np.diff(part.offsets)
        self.batches += 1
        self.chunks += len(lengths)
        self.tokens += len(part.tokens)
        self.chunk_tokens.add(lengths)
        if not packed and len(lengths):
            self.padding += len(lengths) * int(lengths.max()) - len(part.tokens)

    def refuse(self, failures: Iterable[Failure]) -> None:
        """Keep the first failures in full; the ledger has all."""
        self.refused += islice(failures, FAILURES_KEPT - len(self.refused))

    def take_over(self, documents: int) -> None:
        """Count documents that gave way to others which are gone, and are what is stored already."""
        self.duplicates -= documents
        self.unchanged += documents

    def warn(self, shard: str, kind: str, detail: str) -> None:
        """Keep a warning, unless there are many like it."""
        self.warned[shard, kind] += 1
        if self.warned[shard, kind] <= WARNINGS_KEPT:
            self.warnings.append((shard, kind, detail))
