"""The read stage: files in, blocks out."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from pathlib import Path

import psutil
import pytest

from ingestor.records import Shard
from ingestor.sources.cutting import Limits
from ingestor.sources.files import PIECE_BYTES
from ingestor.sources.listing import list_shards
from ingestor.sources.read import _read_shard, open_shard, read_blocks
from tests.reading import FIELDS, read_paths, read_shards


def lines(start: int, count: int, text: str = "Some text.") -> bytes:
    rows = ({"id": number, "text": text} for number in range(start, start + count))
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def shards_of(folder: Path) -> list[Shard]:
    return list_shards([str(folder)]).shards


async def test_shards_come_in_order_and_each_has_one_end(tmp_path: Path) -> None:
    contents = [lines(1000 * number, 40 * number) for number in range(9)]
    for number, content in enumerate(contents):
        packed = gzip.compress(content) if number % 2 else content
        (tmp_path / f"{number}.jsonl").write_bytes(packed)
    blocks = await read_shards(shards_of(tmp_path), block_bytes=500)
    assert [block.number for block in blocks] == list(range(len(blocks)))
    for number, content in enumerate(contents):
        own = [block for block in blocks if block.shard.name == f"{number}.jsonl"]
        assert b"".join(block.data for block in own) == content
        assert [block.end is not None for block in own] == [False] * (len(own) - 1) + [True]
        assert own[-1].end
        assert own[-1].end.finished
    assert [block.shard.name for block in blocks] == sorted(block.shard.name for block in blocks)


@pytest.mark.parametrize("block_bytes", [1 << 16, 1 << 22])
async def test_a_file_of_many_pieces_comes_out_whole(tmp_path: Path, block_bytes: int) -> None:
    content = lines(0, 3 * PIECE_BYTES // 100, text="x" * 90)
    (tmp_path / "a.jsonl").write_bytes(content)
    blocks = await read_shards(shards_of(tmp_path), block_bytes=block_bytes)
    assert b"".join(block.data for block in blocks) == content
    assert all(len(block.data) <= block_bytes for block in blocks)
    assert all(content[block.offset :].startswith(block.data) for block in blocks)
    assert all(block.place == content[: block.offset].count(b"\n") + 1 for block in blocks if block.data)


async def test_a_stop_ends_without_the_end_of_a_shard(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(lines(0, 1000))
    stop, blocks = asyncio.Event(), []
    with ThreadPoolExecutor(2) as unpack:
        reading = read_blocks(
            shards_of(tmp_path),
            format="jsonl",
            fields=FIELDS,
            block_bytes=1000,
            max_line_bytes=1000,
            unpack=unpack,
            stop=stop,
        )
        async for block in reading:
            blocks.append(block)
            stop.set()
    assert len(blocks) == 1
    assert blocks[0].end is None


async def test_closing_in_the_middle_leaves_no_file_open(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / f"{name}.jsonl").write_bytes(lines(0, 30_000, text="x" * 50))
    with ThreadPoolExecutor(2) as unpack:
        reading = read_blocks(
            shards_of(tmp_path),
            format="jsonl",
            fields=FIELDS,
            block_bytes=1 << 16,
            max_line_bytes=1 << 16,
            unpack=unpack,
            stop=asyncio.Event(),
        )
        async with aclosing(reading):
            for _ in range(20):  # beyond the first piece
                await anext(reading)
    opened = [file.path for file in psutil.Process().open_files()]
    assert not [path for path in opened if path.startswith(str(tmp_path))]


async def test_what_is_gone_or_no_file_any_more_is_an_error_of_its_shard(tmp_path: Path) -> None:
    for name in "abcd":
        (tmp_path / name).write_bytes(lines(ord(name), 1))
    shards = shards_of(tmp_path)
    (tmp_path / "a").unlink()
    (tmp_path / "b").unlink()
    os.mkfifo(tmp_path / "b")
    (tmp_path / "c").unlink()
    (tmp_path / "c").mkdir()
    ends = [block.end for block in await read_shards(shards, format="jsonl") if block.end]
    assert [[kind for kind, _ in end.errors] for end in ends] == [
        ["vanished"],
        ["not_a_file"],
        ["not_a_file"],
        [],
    ]
    assert [end.finished for end in ends] == [False, False, False, True]


async def test_a_file_in_the_place_of_another_is_not_read_on(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(lines(0, 30_000, text="x" * 50))
    opened = open_shard(shards_of(tmp_path)[0], "jsonl", Limits(1 << 16, 1 << 16), FIELDS)
    (tmp_path / "new").write_bytes(path.read_bytes())
    (tmp_path / "new").rename(path)
    with ThreadPoolExecutor(1) as unpack:
        *_, last = [block async for block in _read_shard(opened, unpack, asyncio.Event())]
    assert last.end
    assert [kind for kind, _ in last.end.errors] == ["vanished"]


async def test_a_file_that_changed_is_read_but_not_finished(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(lines(0, 1))
    shards = shards_of(tmp_path)
    (tmp_path / "a.jsonl").write_bytes(lines(0, 2))
    (block,) = await read_shards(shards)
    assert block.data == lines(0, 2)
    assert block.end
    assert not block.end.finished
    assert [kind for kind, _ in block.end.warnings] == ["changed"]


async def test_a_line_still_being_written_is_no_reject(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(lines(0, 2) + b'{"id": 2, "text": "half wri')
    found = await read_paths(tmp_path)
    assert (found.ids, found.failures) == (["0", "1"], [])
    assert not found.ends["a.jsonl"].finished
    assert [kind for kind, _ in found.ends["a.jsonl"].warnings] == ["truncated_input"]
    (tmp_path / "a.jsonl").write_bytes(lines(0, 3).rstrip())
    found = await read_paths(tmp_path)
    assert found.ids == ["0", "1", "2"]
    assert found.ends["a.jsonl"].finished


async def test_a_half_line_in_a_whole_packed_file_is_a_reject(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(lines(0, 2) + b'{"id": 2, "te'))
    found = await read_paths(tmp_path)
    assert (found.ids, found.kinds) == (["0", "1"], ["bad_json"])
    assert found.ends["a.jsonl.gz"].finished


async def test_a_line_that_is_too_long_is_refused_alone(tmp_path: Path) -> None:
    content = lines(0, 1) + lines(1, 1, text="x" * (3 * PIECE_BYTES)) + lines(2, 1)
    (tmp_path / "a.jsonl").write_bytes(content)
    found = await read_paths(tmp_path, max_line_bytes=1 << 16)
    assert (found.ids, found.kinds) == (["0", "2"], ["line_too_long"])
    assert found.failures[0].place == 2
    assert (await read_paths(tmp_path)).ids == ["0", "1", "2"]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-32", "utf-8-sig"])
async def test_a_mark_tells_the_encoding(tmp_path: Path, encoding: str) -> None:
    mark = b"\xfe\xff" if encoding == "utf-16-be" else b""
    text = "".join(f'{{"id": {number}, "text": "na\u00efve \u6771"}}\r\n' for number in range(2000))
    (tmp_path / "a").write_bytes(mark + text.encode(encoding))
    found = await read_paths(tmp_path, block_bytes=1000)
    assert found.ids == [str(number) for number in range(2000)]
    assert {document.text for document in found.documents} == {"na\u00efve \u6771"}


async def test_half_a_character_at_the_end_is_still_being_written(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes('{"id": 1, "text": "a"}\n{"id'.encode("utf-16")[:-1])
    found = await read_paths(tmp_path)
    assert (found.ids, found.failures) == (["1"], [])
    assert not found.ends["a"].finished


@pytest.mark.parametrize(
    ("name", "content", "outcome"),
    [
        ("a.jsonl", b"", []),
        ("a.csv", b"", []),
        ("a.parquet", b"", ["corrupt_input"]),
        ("a.parquet", b"id,text\n1,a\n", ["wrong_format"]),
        ("a.jsonl", b"PAR1 and more", ["corrupt_input"]),
        ("a.jsonl", gzip.compress(b"PAR1 and more", mtime=0), ["wrong_format"]),
        ("a.jsonl", b"\xfd7zXZ\0...", ["wrong_format"]),
        ("a.bin", b"what is this?", ["wrong_format"]),
        ("a.csv", b"id,text\n1,a\n", []),
        ("a.tsv", b"id\ttext\n1\ta\n", []),
        ("a.xml", b"<other></other>", ["wrong_format"]),
        ("a.html", b"<!DOCTYPE html><p>", ["wrong_format"]),
        ("a.txt", b"Plain text.", []),
        ("a.bin", b'\n {"id": 1, "text": "a record, whatever the name"}\n', []),
        ("a.jsonl", b"{broken\n", []),
    ],
)
async def test_auto_goes_by_content_then_by_name(
    tmp_path: Path, name: str, content: bytes, outcome: list[str]
) -> None:
    (tmp_path / name).write_bytes(content)
    found = await read_paths(tmp_path)
    assert [kind for kind, _ in found.ends[name].errors] == outcome
    assert found.ends[name].finished == (not outcome)
    assert len(found.documents) + len(found.failures) == (0 if outcome or not content else 1)
