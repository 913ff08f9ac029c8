"""Rows of quoted and of plain cells."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ingestor.sources.cutting import Cut, Limits
from ingestor.sources.quoting import QuotedCutter
from tests.reading import FIELDS, Reading, read_paths

EVERYTHING = replace(FIELDS, metadata=None)


async def read(tmp_path: Path, content: bytes | str, *, name: str = "a.csv", **options: object) -> Reading:
    (tmp_path / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return await read_paths(tmp_path / name, **{"fields": EVERYTHING, **options})


def texts(found: Reading) -> dict[str, str]:
    return {document.id: document.text for document in found.documents}


async def test_cells_are_strings_and_places_are_lines(tmp_path: Path) -> None:
    content = 'id,text,n\r\n007,"one\r\ntwo ""2"", three",1e3\r\n\r\n7,é,\r\n'
    found = await read(tmp_path, codecs.BOM_UTF8 + content.encode())
    assert texts(found) == {"007": 'one\r\ntwo "2", three', "7": "é"}
    assert [document.payload for document in found.documents] == [
        {"id": "007", "n": "1e3"},
        {"id": "7", "n": ""},
    ]
    assert [document.place for document in found.documents] == [2, 5]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "utf-8-sig"])
@pytest.mark.parametrize(("name", "tab"), [("a.csv", ","), ("a.tsv", "\t")])
async def test_a_mark_tells_the_encoding(tmp_path: Path, name: str, tab: str, encoding: str) -> None:
    content = f"id{tab}text\r\n" + "".join(f"{i}{tab}naïve 東\r\n" for i in range(2000))
    found = await read(tmp_path, content.encode(encoding), name=name, block_bytes=1000)
    assert texts(found) == {str(i): "naïve 東" for i in range(2000)}


async def test_quotes_within_plain_cells_are_characters(tmp_path: Path) -> None:
    content = 'id,text\n1,5" and 6"\n2, "not, quoted"\n3,"a"b\n'
    found = await read(tmp_path, content)
    assert texts(found) == {"1": '5" and 6"', "3": "ab"}
    assert [(failure.place, failure.kind) for failure in found.failures] == [(3, "bad_row")]


@pytest.mark.parametrize(("name", "tab"), [("a.csv", ","), ("a.tsv", "\t")])
async def test_rows_of_other_lengths_are_refused(tmp_path: Path, name: str, tab: str) -> None:
    content = "id,text,n\n1,a,\n2,b\n3,c,,\n4,d,\n".replace(",", tab)
    found = await read(tmp_path, content, name=name)
    assert texts(found) == {"1": "a", "4": "d"}
    assert [(failure.place, failure.kind) for failure in found.failures] == [(3, "bad_row"), (4, "bad_row")]
    assert "2 cells, where the header has 3" in found.failures[0].detail


@pytest.mark.parametrize(
    ("content", "kind", "said"),
    [
        ("id,body\n1,a\n", "missing_column", "no column 'text', see source.text_field"),
        ("ID,text\n1,a\n", "missing_column", "no column 'id'"),
        ("id;text\n1;a\n", "missing_column", "there are 'id;text'"),
        ("id,text,text\n1,a,b\n", "wrong_format", "'text'"),
        ("id,text\r1,a\r", "wrong_format", "CR"),
        ('id,"text\n1,a\n', "wrong_format", "never closed"),
        (b"id,text,\xff\n1,a,\n", "wrong_format", "byte 9"),
        ("x" * (1 << 21), "wrong_format", "first row"),
    ],
    ids=range(8),
)
async def test_a_header_that_does_not_do(tmp_path: Path, content: str | bytes, kind: str, said: str) -> None:
    found = await read(tmp_path, content)
    ((told, detail),) = found.ends["a.csv"].errors
    assert told == kind
    assert said in detail
    assert not found.documents + found.failures


@pytest.mark.parametrize("content", ["", "\n\n", "id,text", "id,text\n", "\n\nid,text\r\n\r\n"])
async def test_tables_without_rows_are_finished(tmp_path: Path, content: str) -> None:
    found = await read(tmp_path, content)
    assert found.ends["a.csv"].finished
    assert not found.documents + found.failures


async def test_columns_that_nobody_asked_for_may_be_anything(tmp_path: Path) -> None:
    found = await read(tmp_path, "id,text,,,x,x\n1,a,b,c,d,e\n", fields=FIELDS)
    assert texts(found) == {"1": "a"}
    found = await read(tmp_path, "id,text,,,x\n1,a,b,c,d\n")
    assert found.documents[0].payload == {"id": "1", "x": "d"}


async def test_bad_bytes_refuse_their_row_alone(tmp_path: Path) -> None:
    content = b'id,text\n1,"a\nb"\n2,caf\xe9\n3,"c\n\xff"\n4,d\n'
    for name in ("a.csv", "b.tsv"):
        data = content if name == "a.csv" else b"id\ttext\n1\ta\n2\tcaf\xe9\n4\td\n"
        found = await read(tmp_path, data, name=name)
        assert set(texts(found)) == {"1", "4"}
        assert set(found.kinds) == {"bad_encoding"}
        assert all(data[failure.offset or 0] in b"\xe9\xff" for failure in found.failures)
    assert [document.place for document in (await read(tmp_path, content)).documents] == [2, 7]


async def test_a_lone_cr_does_not_shift_the_rows_behind_it(tmp_path: Path) -> None:
    found = await read(tmp_path, 'id,text\n1,a\rb,"x\ny,z"\n2,b\n')
    assert texts(found) == {"2": "b"}
    assert [(failure.place, failure.kind) for failure in found.failures] == [(2, "bad_row")]


async def test_cells_of_any_length(tmp_path: Path) -> None:
    text = ('long "cell",\n' * 100_000)[:-1]
    out = io.StringIO()
    csv.writer(out).writerows([["id", "text"], ["1", text], ["2", "short"]])
    found = await read(tmp_path, gzip.compress(out.getvalue().encode()))
    assert texts(found) == {"1": text, "2": "short"}
    found = await read(tmp_path, out.getvalue(), max_line_bytes=100_000)
    assert texts(found) == {"2": "short"}
    assert found.kinds == ["line_too_long"]
    assert found.documents[0].place == 100_002


async def test_what_is_still_being_written(tmp_path: Path) -> None:
    for tail in ("2", '2,"half', "2,b"):
        found = await read(tmp_path, "id,text,n\n1,a,\n" + tail)
        assert (found.ids, found.kinds) == (["1"], [])
        assert [kind for kind, _ in found.ends["a.csv"].warnings] == ["truncated_input"]
        assert not found.ends["a.csv"].finished
    found = await read(tmp_path, "id,text,n\n1,a,\n2,b,")
    assert found.ids == ["1", "2"]
    assert found.ends["a.csv"].finished


async def test_a_quote_that_is_never_closed_is_told(tmp_path: Path) -> None:
    content = 'id,text\n1,a\n2,"b\n3,c\n4,d\n'
    for data in (content.encode(), gzip.compress(content.encode())):
        found = await read(tmp_path, data)
        assert found.ids == ["1"]
        assert [(failure.place, failure.kind) for failure in found.failures] == [(3, "bad_row")]
        assert "never closed" in found.failures[0].detail


async def test_a_stream_cut_short_refuses_no_row(tmp_path: Path) -> None:
    packed = gzip.compress(("id,text\n" + "".join(f"{i},{i * i}\n" for i in range(5000))).encode())
    found = await read(tmp_path, packed[:-2000])
    assert found.documents
    assert found.kinds == []
    assert [kind for kind, _ in found.ends["a.csv"].errors] == ["truncated_input"]
    assert all(int(document.text) == int(document.id) ** 2 for document in found.documents)


async def test_tabs_know_no_quotes(tmp_path: Path) -> None:
    found = await read(tmp_path, 'id\ttext\n1\t"a"\n2\t"b\n3\tc"\r\n', name="a.tsv")
    assert texts(found) == {"1": '"a"', "2": '"b', "3": 'c"'}


def rows_of(data: bytes) -> list[list[str]]:
    return [row for row in csv.reader(io.StringIO(data.decode(), newline="\n")) if row]


def cut_all(data: bytes, sizes: list[int], limits: Limits) -> list[Cut]:
    cutter, cuts = QuotedCutter("shard", limits, 1, 0), []
    while data:
        size = sizes[len(data) % len(sizes)]
        cuts += cutter.push(data[:size])
        data = data[size:]
    return cuts + cutter.finish(keep_tail=True)


table = st.lists(st.lists(st.text('a",\n', max_size=6), min_size=1, max_size=3), max_size=12)
sizes = st.lists(st.integers(1, 20), min_size=1, max_size=4)


@settings(deadline=None)  # the machine may be busy
@given(table, sizes, st.integers(1, 40), st.booleans())
def test_rows_stay_whole_in_any_pieces(
    rows: list[list[str]], sizes: list[int], block_bytes: int, quoted: bool
) -> None:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n", quoting=csv.QUOTE_ALL if quoted else csv.QUOTE_MINIMAL).writerows(
        rows
    )
    data = out.getvalue().encode()
    cuts = cut_all(data, sizes, Limits(block_bytes, 10_000))
    assert b"".join(cut.data for cut in cuts) == data
    assert [row for cut in cuts for row in rows_of(cut.data)] == rows
    assert all(cut.place == data[: cut.offset].count(b"\n") + 1 for cut in cuts)
    assert not [failure for cut in cuts for failure in cut.failures]


@settings(deadline=None)  # the machine may be busy
@example([["a"], ['"' * 6], ["b"]], [1], 1, 4, False)
@given(table, sizes, st.integers(1, 40), st.integers(1, 20), st.booleans())
def test_over_long_rows_alone_are_refused(
    rows: list[list[str]], sizes: list[int], block_bytes: int, limit: int, quoted: bool
) -> None:
    quoting = csv.QUOTE_ALL if quoted else csv.QUOTE_MINIMAL
    written = []
    for row in rows:
        out = io.StringIO()
        csv.writer(out, lineterminator="\n", quoting=quoting).writerow(row)
        written.append(out.getvalue().encode())
    cuts = cut_all(b"".join(written), sizes, Limits(block_bytes, limit))
    assert b"".join(cut.data for cut in cuts) == b"".join(row for row in written if len(row) <= limit + 1)
    places = [1 + b"".join(written[:i]).count(b"\n") for i in range(len(written))]
    refused = [(failure.kind, failure.place) for cut in cuts for failure in cut.failures]
    assert refused == [
        ("line_too_long", place) for row, place in zip(written, places, strict=True) if len(row) > limit + 1
    ]


def test_an_over_long_row_is_not_kept_while_it_passes() -> None:
    cutter = QuotedCutter("shard", Limits(100, 1000), 1, 0)
    cuts = [*cutter.push(b'short\n"')]
    for _ in range(1000):
        cuts += cutter.push(b'x,""\n' * 20)
        assert len(cutter._held) <= 1200
    cuts += cutter.push(b'"\nlast\n')
    cuts += cutter.finish(keep_tail=True)
    assert b"".join(cut.data for cut in cuts) == b"short\nlast\n"
    assert [failure.place for cut in cuts for failure in cut.failures] == [2]
    assert cuts[-1].place == 20_003
