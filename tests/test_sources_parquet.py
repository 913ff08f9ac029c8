"""Rows of Parquet files."""

from __future__ import annotations

import datetime
import decimal
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from ingestor.sources import Fields
from ingestor.sources.listing import list_shards
from tests.reading import FIELDS, Reading, read_paths, read_shards

EVERYTHING = replace(FIELDS, metadata=None)


async def read(
    tmp_path: Path, columns: dict[str, Any], fields: Fields = EVERYTHING, **options: Any
) -> Reading:
    pq.write_table(pa.table(columns), tmp_path / "a.parquet", **options)
    return await read_paths(tmp_path / "a.parquet", fields=fields, block_bytes=10_000)


async def told(tmp_path: Path, columns: dict[str, Any], fields: Fields = EVERYTHING) -> tuple[str, str]:
    found = await read(tmp_path, columns, fields)
    assert not found.documents + found.failures
    (error,) = found.ends["a.parquet"].errors
    return error


@pytest.mark.parametrize("group", [7, 1000, 100_000])
async def test_places_are_rows_over_blocks_and_groups(tmp_path: Path, group: int) -> None:
    texts = [f"text {i}" * (1 + i % 50) for i in range(3000)]
    found = await read(tmp_path, {"id": range(3000), "text": texts}, row_group_size=group)
    assert found.ids == [str(i) for i in range(3000)]
    assert [document.text for document in found.documents] == texts
    assert [document.place for document in found.documents] == list(range(1, 3001))


@pytest.mark.parametrize("repeated", [False, True])
async def test_blocks_are_bounded(tmp_path: Path, repeated: bool) -> None:
    """Also where many rows share few long texts, or one is much longer than the others."""
    texts = ["long " * 1000] * 1500 if repeated else ["x" * 200_000, *["short"] * 1500]
    table = pa.table({"text": pa.array(texts).dictionary_encode() if repeated else texts})
    pq.write_table(table, tmp_path / "a.parquet")
    fields = replace(FIELDS, id=None)
    blocks = await read_shards(
        list_shards([str(tmp_path)]).shards, fields=fields, block_bytes=20_000, max_line_bytes=100_000
    )
    assert max(len(block.data) for block in blocks) < 21_000
    failures = [failure for block in blocks for failure in block.failures]
    assert [(failure.kind, failure.place) for failure in failures] == (
        [] if repeated else [("line_too_long", 1)]
    )


async def test_only_the_columns_asked_for_are_read(tmp_path: Path) -> None:
    doc = pa.array([{"text": "T", "lang": "en", "more": "x" * 1000}])
    pq.write_table(pa.table({"id": [1], "doc": doc, "other": ["y" * 1000]}), tmp_path / "a.parquet")
    fields = Fields(("doc.text",), "id", "collection", ("doc.lang", "nothing"))
    block, _ = await read_shards(list_shards([str(tmp_path)]).shards, fields=fields)
    with pa.ipc.open_stream(block.data) as stream:
        assert set(stream.schema.names) == {"id", "doc"}
        assert [field.name for field in stream.schema.field("doc").type] == ["text", "lang"]
    found = await read_paths(tmp_path, fields=fields)
    assert found.documents[0].payload == {"doc": {"lang": "en"}}


async def test_values_become_what_a_payload_can_hold(tmp_path: Path) -> None:
    moment = datetime.datetime(2024, 2, 3, 4, 5, 6, 789, tzinfo=datetime.UTC)
    columns = {
        "id": pa.array([2**64 - 1], pa.uint64()),
        "text": ["T"],
        "nanoseconds": pa.array([1_700_000_000_123_456_789], pa.timestamp("ns")),
        "zone": pa.array([moment], pa.timestamp("us", "America/New_York")),
        "day": [moment.date()],
        "amount": [decimal.Decimal("1.50")],
        "half": pa.array([1.5], pa.float16()),
        "nan": [float("nan")],
        "bytes": [b"caf\xe9"],
        "uuid": pa.array([uuid.UUID(int=5).bytes], pa.uuid()),
        "list": [[{"at": moment.replace(tzinfo=None), "word": "w"}, None]],
        "map": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())),
        "words": pa.array([["a", "b"]], pa.list_(pa.dictionary(pa.int8(), pa.string()))),
        "flag": [True],
        "null": pa.nulls(1),
    }
    found = await read(tmp_path, columns)
    assert found.ends["a.parquet"].errors == ()
    assert found.documents[0].payload == {
        "id": str(2**64 - 1),
        "nanoseconds": "2023-11-14 22:13:20.123456789",
        "zone": "2024-02-03 04:05:06.000789Z",
        "day": "2024-02-03",
        "amount": "1.50",
        "half": 1.5,
        "nan": None,
        "bytes": "caf\ufffd",
        "uuid": str(uuid.UUID(int=5)),
        "list": [{"at": "2024-02-03 04:05:06.000789", "word": "w"}, None],
        "map": [["k", 1]],
        "words": ["a", "b"],
        "flag": True,
        "null": None,
    }
    assert found.documents[0].replaced == 1


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        (["007", "", None], ["007"]),
        ([7, None], ["7"]),
        ([7.0, 7.5], ["7"]),
        ([decimal.Decimal(7)], ["7"]),
        ([b"a", b"\xff"], ["a"]),
        (pa.array(["a", "b"]).dictionary_encode(), ["a", "b"]),
        (pa.array([uuid.UUID(int=5).bytes], pa.uuid()), [str(uuid.UUID(int=5))]),
    ],
    ids=range(7),
)
async def test_ids_of_all_types(tmp_path: Path, ids: Any, expected: list[str]) -> None:
    found = await read(tmp_path, {"id": ids, "text": ["T"] * len(ids)}, FIELDS)
    assert found.ids == expected
    assert len(found.failures) == len(ids) - len(expected)
    assert set(found.kinds) <= {"bad_id", "bad_encoding"}


@pytest.mark.parametrize("nested", [False, True])
async def test_text_that_is_no_utf8_is_told_with_its_byte(tmp_path: Path, nested: bool) -> None:
    """Columns of text are not checked by those who write them."""
    raw = pa.array([b"fine", "é".encode() + b"x\xff", None])
    lying = pa.Array.from_buffers(pa.string(), 3, raw.buffers())
    column = pa.StructArray.from_arrays([lying], ["body"]) if nested else lying
    path = "doc.body" if nested else "doc"
    found = await read(tmp_path, {"id": [1, 2, 3], "doc": column}, replace(FIELDS, text=(path,)))
    assert found.ids == ["1"]
    assert [(failure.place, failure.kind) for failure in found.failures] == [
        (2, "bad_encoding"),
        (3, "missing_text"),
    ]
    assert f"byte 4 of {path} (0xff)" in found.failures[0].detail


@pytest.mark.parametrize(
    "values", [[1], [["a"]], [{"a": "b"}], [True], [datetime.date(2024, 1, 1)], [1.5]], ids=str
)
async def test_what_is_no_text_refuses_the_shard(tmp_path: Path, values: list[Any]) -> None:
    kind, detail = await told(tmp_path, {"id": [1], "text": values})
    assert kind == "unsupported_type"
    assert "'text'" in detail


async def test_what_is_no_id_refuses_the_shard(tmp_path: Path) -> None:
    assert (await told(tmp_path, {"id": [True], "text": ["T"]}))[0] == "unsupported_type"
    assert (await told(tmp_path, {"id": [decimal.Decimal("1.5")], "text": ["T"]}))[0] == "unsupported_type"


@pytest.mark.parametrize(
    ("fields", "lacking"),
    [
        (replace(FIELDS, text=("nosuch",)), "nosuch"),
        (replace(FIELDS, text=("text", "doc.nosuch")), "doc.nosuch"),
        (replace(FIELDS, text=("text.more",)), "text.more"),
        (replace(FIELDS, id="key"), "key"),
    ],
)
async def test_missing_columns_are_named_beside_those_there_are(
    tmp_path: Path, fields: Fields, lacking: str
) -> None:
    kind, detail = await told(tmp_path, {"id": [1], "text": ["T"], "doc": [{"a": "b"}]}, fields)
    assert (kind, detail) == (
        "missing_column",
        f"no column '{lacking}', see source.text_field and source.id_field; there are 'id', 'text', 'doc'",
    )


async def test_two_columns_of_one_name(tmp_path: Path) -> None:
    table = pa.table([pa.array([1]), pa.array(["a"]), pa.array(["b"])], names=["id", "text", "text"])
    pq.write_table(table, tmp_path / "a.parquet")
    found = await read_paths(tmp_path)
    assert [kind for kind, _ in found.ends["a.parquet"].errors] == ["wrong_format"]


async def test_what_was_read_before_the_damage_is_kept(tmp_path: Path) -> None:
    table = pa.table({"id": range(1000), "text": [f"text {i}" for i in range(1000)]})
    path = tmp_path / "a.parquet"
    pq.write_table(table, path, row_group_size=100, compression="zstd", write_page_checksum=True)
    content = bytearray(path.read_bytes())
    start = pq.ParquetFile(path).metadata.row_group(5).column(1).data_page_offset
    content[start + 100] ^= 0xFF
    path.write_bytes(content)
    found = await read_paths(path)
    assert found.ids == [str(i) for i in range(500)]
    assert [kind for kind, _ in found.ends["a.parquet"].errors] == ["corrupt_input"]
    path.write_bytes(content[:-8])
    assert [kind for kind, _ in (await read_paths(path)).ends["a.parquet"].errors] == ["corrupt_input"]


async def test_encrypted_files_are_told(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PARE" + b"\0" * 100 + b"\x10\0\0\0PARE")
    ((kind, detail),) = (await read_paths(tmp_path)).ends["a.parquet"].errors
    assert kind == "unreadable"
    assert "encrypted" in detail


async def test_a_name_that_is_no_utf8_can_be_opened(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1], "text": ["T"]}), tmp_path / "a.parquet")
    (tmp_path / "a.parquet").rename(tmp_path / "caf\udce9.parquet")
    assert (await read_paths(tmp_path)).ids == ["1"]


async def test_no_file_stays_open(tmp_path: Path) -> None:
    await read(tmp_path, {"id": range(100), "text": ["T"] * 100})
    await told(tmp_path, {"id": [1]})
    assert not [file for file in psutil.Process().open_files() if file.path.startswith(str(tmp_path))]
