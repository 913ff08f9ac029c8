"""Whatever was written is read back, and whatever was damaged is told: in every format and packing."""

from __future__ import annotations

import asyncio
import bz2
import csv
import gzip
import io
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import pyarrow as pa
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pyarrow import parquet as pq

from ingestor.sources import Fields
from ingestor.sources.compression import zstd
from ingestor.sources.values import VISIBLE
from tests.reading import Reading, read_paths

FIELDS = Fields(("text",), "id", "collection", ("note",))
Row = tuple[str, str]
"""Text and note; the id is the row's number."""

ROWS = st.lists(
    st.tuples(
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40).filter(
            VISIBLE.search
        ),
        st.text('a", \n\r\t\\é東', max_size=10),
    ),
    max_size=12,
)
PACKINGS: dict[str, Callable[[bytes], bytes]] = {
    "plain": bytes,
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
    "zstd": zstd.compress,
}


def jsonl(rows: list[Row]) -> bytes:
    records = ({"id": i, "text": text, "note": note} for i, (text, note) in enumerate(rows))
    return b"".join(json.dumps(record, ensure_ascii=False).encode() + b"\n" for record in records)


def comma(rows: list[Row]) -> bytes:
    out = io.StringIO()
    csv.writer(out).writerows([("id", "text", "note"), *((i, *row) for i, row in enumerate(rows))])
    return out.getvalue().encode()


def tab(rows: list[Row]) -> bytes:
    return "".join(
        "\t".join(map(str, row)) + "\n" for row in [("id", "text", "note"), *numbered(rows)]
    ).encode()


def numbered(rows: list[Row]) -> list[tuple[int, str, str]]:
    return [(i, *row) for i, row in enumerate(rows)]


def parquet(rows: list[Row]) -> bytes:
    out = io.BytesIO()
    names = ("id", "text", "note")
    columns = {name: [row[i] for row in numbered(rows)] for i, name in enumerate(names)}
    types = pa.schema([("id", pa.int64()), ("text", pa.string()), ("note", pa.string())])
    pq.write_table(
        pa.table(columns, types), out, row_group_size=5, compression="zstd", write_page_checksum=True
    )
    return out.getvalue()


def mediawiki(rows: list[Row]) -> bytes:
    pages = "".join(
        f"<page><title>T</title><ns>0</ns><id>{i}</id><revision><id>1</id><timestamp>t</timestamp>"
        f"<model>wikitext</model><text>{escape(text)}</text></revision></page>\n"
        for i, (text, _) in enumerate(rows)
    )
    return f"<mediawiki><siteinfo></siteinfo>{pages}</mediawiki>".encode()


WRITE = {"jsonl": jsonl, "csv": comma, "tsv": tab, "parquet": parquet, "mediawiki": mediawiki}
formats = st.sampled_from(sorted(WRITE))
packings = st.sampled_from(sorted(PACKINGS))


def read(content: bytes, kind: str, block_bytes: int = 100) -> Reading:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "shard")
        path.write_bytes(content)
        return asyncio.run(read_paths(path, fields=FIELDS, format=kind, block_bytes=block_bytes))


def fits(row: Row, kind: str) -> bool:
    """Whether the format can hold such a row as it is."""
    if kind == "tsv":
        return not {"\t", "\n", "\r"} & set("".join(row))
    if kind == "mediawiki":  # XML holds no control characters, and CR reads as LF
        return row[0].isprintable() and not row[0].lower().lstrip().startswith("#redirect")
    return True


@settings(deadline=None, max_examples=150)
@given(ROWS, formats, packings, st.integers(1, 300))
def test_what_is_written_is_read_back(rows: list[Row], kind: str, packing: str, block_bytes: int) -> None:
    rows = [row for row in rows if fits(row, kind)]
    if kind == "parquet":
        packing = "plain"
    found = read(PACKINGS[packing](WRITE[kind](rows)), kind, block_bytes)
    assert found.failures == []
    assert all(end.finished for end in found.ends.values())
    assert [(document.id, document.text) for document in found.documents] == [
        (str(i), text) for i, (text, _) in enumerate(rows)
    ]
    if kind != "mediawiki":
        assert [document.payload["note"].replace("\0", "") for document in found.documents] == [
            note for _, note in rows
        ]


def known(rows: list[Row]) -> set[tuple[str, str]]:
    return {(str(i), text) for i, (text, _) in enumerate(rows)}


def check_account(found: Reading) -> None:
    """A shard is finished, or it says why it is not."""
    (end,) = found.ends.values()
    assert end.finished != bool(end.errors or end.warnings)
    records: list[Any] = [*found.documents, *found.failures, *found.skipped]
    places = [record.place for record in records]
    assert len(set(places)) == len(places)


@settings(deadline=None, max_examples=150)
@given(ROWS, formats, packings, st.data())
def test_what_is_cut_short_is_told(rows: list[Row], kind: str, packing: str, data: st.DataObject) -> None:
    rows = [row for row in rows if fits(row, kind)]
    if kind == "parquet":
        packing = "plain"
    content = PACKINGS[packing](WRITE[kind](rows))
    cut = data.draw(st.integers(0, len(content) - 1) if content else st.just(0))
    found = read(content[:cut], kind)
    check_account(found)
    (end,) = found.ends.values()
    documents = [(document.id, document.text) for document in found.documents]
    whole = [(str(i), text) for i, (text, _) in enumerate(rows)]
    assert documents[:-1] == whole[: len(documents[:-1])]
    if cut >= 10 and packing != "plain":  # where the packing can be told
        assert documents == whole[: len(documents)]
        assert end.errors
        assert found.failures == []


@settings(deadline=None, max_examples=200)
@given(ROWS, formats, packings, st.data())
def test_what_is_damaged_raises_nothing(
    rows: list[Row], kind: str, packing: str, data: st.DataObject
) -> None:
    rows = [row for row in rows if fits(row, kind)]
    content = bytearray(PACKINGS[packing](WRITE[kind](rows)))
    assume(content)
    flips = data.draw(st.lists(st.tuples(st.integers(0, len(content) - 1), st.integers(1, 255)), max_size=3))
    for at, bits in flips:
        content[at] ^= bits
    asked = data.draw(st.sampled_from([kind, "auto"]))
    found = read(bytes(content), asked)
    check_account(found)
    if asked == kind and packing == "plain" and kind in ("jsonl", "tsv") and all(at > 20 for at, _ in flips):
        lost = known(rows) - {(document.id, document.text) for document in found.documents}
        assert len(lost) <= 2 * len(flips)  # a line end that is none any more takes two rows


@settings(deadline=None, max_examples=60)
@given(ROWS, ROWS, packings, packings)
def test_good_shards_in_one_file(rows: list[Row], more: list[Row], packing: str, other: str) -> None:
    content = PACKINGS[packing](jsonl(rows)) + PACKINGS[other](jsonl(more))
    found = read(content, "jsonl")
    check_account(found)
    documents = [(document.id, document.text) for document in found.documents]
    first = [(str(i), text) for i, (text, _) in enumerate(rows)]
    if packing == other:
        assert documents == first + [(str(i), text) for i, (text, _) in enumerate(more)]
    else:
        assert documents[: len(first)] == first
