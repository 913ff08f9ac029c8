"""Exports to pages."""

from __future__ import annotations

import bz2
from dataclasses import replace
from pathlib import Path

import pytest

from tests.reading import FIELDS, read_paths

HEAD = (
    '<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/">\n'
    '<siteinfo><namespaces><namespace key="0" />'
    '<namespace key="1">Diskussion</namespace></namespaces></siteinfo>\n'
)
END = "</mediawiki>\n"


def page(number: int, text: str, *, title: str = "Title", extra: str = "<ns>0</ns>") -> str:
    revision = f"<revision><id>{number}0</id><timestamp>2021</timestamp><text>{text}</text></revision>"
    return f"<page><title>{title}</title>{extra}<id>{number}</id>{revision}</page>\n"


def write(folder: Path, *parts: str, name: str = "a.xml", encoding: str = "utf-8") -> Path:
    (folder / name).write_bytes("".join(parts).encode(encoding))
    return folder / name


@pytest.mark.parametrize("block_bytes", [1, 700, 1 << 20])
async def test_pages_in_blocks_of_any_size(tmp_path: Path, block_bytes: int) -> None:
    talk = page(3, "Talk.", title="Diskussion:Title", extra="")
    path = write(
        tmp_path, HEAD, page(1, "One."), page(2, "Two."), talk, page(4, "4", title="A: B", extra=""), END
    )
    found = await read_paths(path, fields=replace(FIELDS, metadata=None), block_bytes=block_bytes)
    assert found.ids == ["1", "2", "4"]
    assert [(skip.place, skip.kind) for skip in found.skipped] == [(3, "namespace")]
    assert [document.place for document in found.documents] == [1, 2, 4]
    payload = {"id": "1", "title": "Title", "ns": 0, "revision": 10, "timestamp": "2021"}
    assert found.documents[0].payload == payload
    assert found.ends["a.xml"].finished


@pytest.mark.parametrize("encoding", ["utf-16-be", "utf-16-le", "utf-16", "iso-8859-1", "utf-8-sig"])
async def test_encodings_by_mark_and_by_declaration(tmp_path: Path, encoding: str) -> None:
    declared = "utf-16" if encoding.startswith("utf-16") else encoding.removesuffix("-sig")
    declaration = f'<?xml version="1.0" encoding="{declared}"?>\n'
    found = await read_paths(
        write(tmp_path, declaration, HEAD, page(1, "na\u00efve"), END, encoding=encoding)
    )
    assert [document.text for document in found.documents] == ["na\u00efve"]


@pytest.mark.parametrize(
    ("declared", "kind"),
    [
        ("nobodys", "wrong_format"),
        ("base64", "wrong_format"),
        ("rot13", "wrong_format"),
        ("punycode", "corrupt_input"),
    ],
)
async def test_declarations_of_no_encoding_end_the_shard_alone(
    tmp_path: Path, declared: str, kind: str
) -> None:
    write(tmp_path, f'<?xml version="1.0" encoding="{declared}"?>\n', HEAD, page(1, "One."), END)
    write(tmp_path, HEAD, page(2, "Two."), END, name="b.xml")
    found = await read_paths(tmp_path)
    assert [error for error, _ in found.ends["a.xml"].errors] == [kind]
    assert found.ids == ["2"]


async def test_the_number_of_a_revision_that_is_none(tmp_path: Path) -> None:
    path = write(tmp_path, HEAD, page(1, "One.").replace("<id>10</id>", f"<id>{'9' * 5000}</id>"), END)
    [document] = (await read_paths(path, fields=replace(FIELDS, metadata=None))).documents
    assert document.payload["revision"] is None


async def test_the_latest_revision_counts(tmp_path: Path) -> None:
    revisions = "".join(
        f"<revision><id>{number}</id><timestamp>{time}</timestamp><text>{number}</text></revision>"
        for number, time in enumerate(
            ["2020-01-01T00:00:00Z", "2022-01-01T00:00:00Z", "2021-01-01T00:00:00Z"]
        )
    )
    path = write(tmp_path, HEAD, f"<page><title>T</title><ns>0</ns><id>5</id>{revisions}</page>", END)
    assert [document.text for document in (await read_paths(path)).documents] == ["1"]


async def test_titles_can_be_part_of_the_text(tmp_path: Path) -> None:
    path = write(tmp_path, HEAD, page(1, "One."), END)
    found = await read_paths(path, fields=replace(FIELDS, text=("title", "text")))
    assert found.documents[0].text == "Title\n\nOne."


@pytest.mark.parametrize("declared", ["<!DOCTYPE x [<!ENTITY a 'aaaa'>]>", "<!doctype mediawiki SYSTEM 'x'>"])
@pytest.mark.parametrize("block_bytes", [1, 1 << 20])
async def test_declarations_are_refused(tmp_path: Path, declared: str, block_bytes: int) -> None:
    found = await read_paths(write(tmp_path, declared, HEAD, page(1, "&a;"), END), block_bytes=block_bytes)
    assert [kind for kind, _ in found.ends["a.xml"].errors] == ["unsafe_xml"]
    assert found.documents == []


async def test_an_export_cut_short_keeps_its_whole_pages(tmp_path: Path) -> None:
    for cut in ("", "\n", page(2, "Two.")[:-12]):
        found = await read_paths(write(tmp_path, HEAD, page(1, "One."), cut))
        assert found.ids == ["1"]
        assert [kind for kind, _ in found.ends["a.xml"].errors] == ["truncated_input"]


async def test_a_packed_export_cut_short_keeps_its_whole_pages(tmp_path: Path) -> None:
    pages = "".join(page(number, f"Page {number}. " * 50) for number in range(3000))
    packed = bz2.compress((HEAD + pages + END).encode())
    (tmp_path / "a.bz2").write_bytes(packed[: len(packed) - 100])
    found = await read_paths(tmp_path)
    assert found.ids == [str(number) for number in range(len(found.ids))]
    assert [kind for kind, _ in found.ends["a.bz2"].errors] == ["truncated_input"]


async def test_broken_pages_are_refused_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.xml"
    broken = (
        page(2, "<b>").encode() + page(3, "&what;").encode() + page(4, "caf#").encode().replace(b"#", b"\xe9")
    )
    path.write_bytes((HEAD + page(1, "One.")).encode() + broken + (page(5, "Five.") + END).encode())
    found = await read_paths(path)
    assert found.ids == ["1", "5"]
    assert [(failure.place, failure.kind) for failure in found.failures] == [
        (2, "bad_row"),
        (3, "bad_row"),
        (4, "bad_encoding"),
    ]


async def test_a_page_that_is_too_long_is_refused_alone(tmp_path: Path) -> None:
    path = write(tmp_path, HEAD, page(1, "One."), page(2, "x" * 5000), page(3, "Three."), END)
    found = await read_paths(path, max_line_bytes=1000)
    assert (found.ids, found.kinds) == (["1", "3"], ["line_too_long"])
    assert found.ends["a.xml"].finished


async def test_what_is_no_export_is_refused(tmp_path: Path) -> None:
    found = await read_paths(write(tmp_path, '{"id": 1, "text": "T"}\n'), format="mediawiki")
    assert [kind for kind, _ in found.ends["a.xml"].errors] == ["wrong_format"]


async def test_broken_names_of_namespaces_are_done_without(tmp_path: Path) -> None:
    head = HEAD.replace("Diskussion", "Talk & more")
    path = write(tmp_path, head, page(1, "One."), page(2, "2", title="Talk: x", extra=""), END)
    found = await read_paths(path)
    assert found.ids == ["1"]
    assert [skip.kind for skip in found.skipped] == ["namespace"]
