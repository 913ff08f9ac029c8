"""The same records as shards of several formats, read into blocks as a run reads them."""

from __future__ import annotations

import asyncio
import csv
import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from xml.sax.saxutils import escape

import pyarrow as pa
from pyarrow import parquet as pq

from ingestor.records import RawBlock
from ingestor.sources import Fields
from ingestor.sources.listing import list_shards
from ingestor.sources.read import read_blocks

Record = dict[str, str]
PASSAGES_A_PAGE = 20
PAGE = (
    "<page><title>{title}</title><ns>0</ns><id>{number}</id><revision><id>1</id>"
    "<timestamp>2026-01-01T00:00:00Z</timestamp><model>wikitext</model><text>{text}</text></revision></page>\n"
)
INFOBOX = "{{Infobox thing\n| name = Name\n| image = Image.jpg\n| area = {{convert|5|km2}}\n}}\n"
MARKUP = (
    "'''{0}''' is a [[thing|kind of thing]].<ref>{{{{cite book|title=Title|year=2001}}}}</ref>\n",
    "== {0} ==\n[[File:Image.jpg|thumb|A [[caption]] of it]]\n",
    "* [[{0}]]\n* [https://example.org/ {0}]\n",
    '{{| class="wikitable"\n! a !! b\n|-\n| {0} || 2\n|}}\n',
)


def write_jsonl(records: Sequence[Record], path: Path) -> None:
    path.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records))


def write_csv(records: Sequence[Record], path: Path) -> None:
    with path.open("w", newline="") as file:
        rows = csv.DictWriter(file, records[0])
        rows.writeheader()
        rows.writerows(records)


def write_parquet(records: Sequence[Record], path: Path) -> None:
    pq.write_table(pa.Table.from_pylist(list(records)), path, compression="zstd")


def write_mediawiki(records: Sequence[Record], path: Path) -> None:
    """Pages of some passages each, with about the markup that an encyclopaedia has."""
    pages = []
    for start in range(0, len(records), PASSAGES_A_PAGE):
        parts = [INFOBOX]
        for i, record in enumerate(records[start : start + PASSAGES_A_PAGE]):
            parts += (MARKUP[i % len(MARKUP)].format(record["title"][:20]), record["text"], "\n\n")
        title = escape(records[start]["title"])
        pages.append(PAGE.format(title=title, number=start, text=escape("".join(parts))))
    path.write_text(f"<mediawiki>{''.join(pages)}</mediawiki>")


WRITERS = {"jsonl": write_jsonl, "csv": write_csv, "parquet": write_parquet, "mediawiki": write_mediawiki}


def read_all(path: Path, fields: Fields, block_bytes: int) -> tuple[list[RawBlock], float]:
    """All blocks of a shard, and the CPU time that reading took, in seconds."""

    async def read() -> list[RawBlock]:
        with ThreadPoolExecutor(2) as unpack:
            blocks = read_blocks(
                list_shards([str(path)]).shards,
                format="auto",
                fields=fields,
                block_bytes=block_bytes,
                max_line_bytes=1 << 26,
                unpack=unpack,
                stop=asyncio.Event(),
            )
            return [block async for block in blocks if block.data]

    start = time.process_time()
    blocks = asyncio.run(read())
    return blocks, time.process_time() - start
