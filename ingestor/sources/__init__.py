"""What a shard is: paths to shards, bytes to blocks of whole records, blocks to documents.

A format is a module with `splitter` (unpacked bytes to blocks), `documents` (a block's records) and `prose`.
Parquet has its index at the end of the file: `Feed` lets it read the file itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from ingestor.records import Document, Failure, RawBlock, Skipped
from ingestor.sources import csv, jsonl, mediawiki, parquet, text, tsv
from ingestor.sources.cutting import Limits, Splitter
from ingestor.sources.fields import Fields

__all__ = ["FORMATS", "Fields", "Format", "documents", "prose"]


class Format(Protocol):
    """What a format's module gives."""

    def splitter(self, shard: str, limits: Limits, fields: Fields) -> Splitter:
        """Make what cuts one shard's unpacked bytes into blocks of whole records; may raise SourceError."""

    def documents(self, block: RawBlock, fields: Fields) -> Iterator[Document | Failure | Skipped]:
        """Parse a block's records, in order."""

    def prose(self, text: str) -> str:
        """Turn a document's text into what is chunked."""


FORMATS: dict[str, Format] = {
    "jsonl": jsonl,
    "csv": csv,
    "tsv": tsv,
    "parquet": parquet,
    "text": text,
    "mediawiki": mediawiki,
}


def documents(block: RawBlock, fields: Fields) -> Iterator[Document | Failure | Skipped]:
    """Parse a block's records, in order: what it holds, what is refused, what is passed over by design."""
    return FORMATS[block.format].documents(block, fields) if block.data else iter(())


def prose(format: str, text: str) -> str:  # noqa: A002
    """Turn a document's text into what is chunked: wikitext into prose, and all else as it is."""
    return FORMATS[format].prose(text)
