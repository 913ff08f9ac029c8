"""Awkward inputs, each with what is right for it in its `expect.yaml`."""

from __future__ import annotations

import runpy
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from ingestor.sources import prose
from tests.reading import FIELDS, Reading, read_paths

CASES = Path(__file__).parent / "cases"
NAMES = sorted(path.parent.name for path in CASES.glob("*/expect.yaml"))


def put_in_place(folder: Path, case: dict[str, Any], work: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    if "make" not in case:
        return folder
    monkeypatch.setattr(sys, "argv", ["make.py", str(work)])
    runpy.run_path(str(folder / "make.py"))
    return work


async def read_case(path: object, case: dict[str, Any]) -> Reading:
    fields = replace(FIELDS, text=(case["text_field"] or "text",), id=case["id_field"])
    fields = replace(fields, metadata=("title", "depth", "n"))
    return await read_paths(path, fields=fields, format=case["format"])


@pytest.mark.parametrize("name", NAMES)
async def test_counts_are_those_of_the_case(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = yaml.safe_load((CASES / name / "expect.yaml").read_text())
    expect = case["expect"]
    place = put_in_place(CASES / name, case, tmp_path, monkeypatch)
    found = await read_case(place / case["input"], case)
    assert len(found.documents) == expect["read"]
    assert len(found.failures) == expect["rejected"]
    assert len(found.skipped) == expect.get("skipped", 0)
    for kind, count in expect.get("rejected_by_kind", {}).items():
        assert found.kinds.count(kind) == count
    assert Counter(page.kind for page in found.skipped) == expect.get("skipped_by_kind", {})
    ends = [kind for end in found.ends.values() for kind, _ in (*end.errors, *end.warnings)]
    assert expect["error_kind"] in ([*ends, *found.kinds] or [None])
    assert all(end.finished for end in found.ends.values()) == expect.get("shard_complete", True)
    assert set(expect.get("warnings", ())) <= {shard for shard, _, _ in found.warnings}
    assert len(set(found.ids)) == expect.get("distinct_ids", expect["read"])
    assert sum(document.replaced for document in found.documents) == expect.get("replaced_characters", 0)
    for path, count in expect.get("each_alone", {}).items():
        assert len((await read_case(place / path, case)).documents) == count


async def case_documents(name: str) -> Reading:
    case = yaml.safe_load((CASES / name / "expect.yaml").read_text())
    return await read_case(CASES / name / case["input"], case)


async def test_ids_keep_their_digits() -> None:
    found = await case_documents("jsonl_big_ints")
    assert found.ids[:4] == [
        "18446744073709551615",
        "18446744073709551616",
        "9007199254740992",
        "9007199254740993",
    ]
    assert found.documents[5].id == "100000000000000000000000000000000000001"
    assert found.documents[5].payload == {"n": "100000000000000000000000000000000000002"}


async def test_ids_of_all_types() -> None:
    found = await case_documents("jsonl_mixed_id_types")
    assert found.ids == ["7", "8", " 8 ", "9"]
    assert {failure.kind for failure in found.failures} == {"bad_id"}
    assert [failure.place for failure in found.failures] == [5, 6, 7, 8, 9, 10, 11]


async def test_numbers_that_json_lacks_are_null() -> None:
    found = await case_documents("jsonl_nan_infinity")
    assert [document.payload["depth"] for document in found.documents] == [None, None, None, None, 4.5]


async def test_blank_lines_count_as_lines() -> None:
    assert [document.place for document in (await case_documents("jsonl_blank_lines")).documents][-1] == 8


async def test_bad_utf8_is_told_with_line_and_byte() -> None:
    found = await case_documents("jsonl_invalid_utf8")
    raw = (CASES / "jsonl_invalid_utf8" / "input.jsonl").read_bytes()
    assert [failure.place for failure in found.failures] == [2, 3, 4, 5]
    assert [raw[failure.offset or 0] for failure in found.failures] == [0xE9, 0xE2, 0xC0, 0xED]


async def test_lone_surrogates_are_replaced_everywhere() -> None:
    found = await case_documents("jsonl_lone_surrogates")
    assert found.ids[-1] == "key\ufffd"
    assert found.documents[0].text == "pair \U0001f600 end"
    assert found.documents[3].text == "reversed \ufffd\ufffd end"


async def test_texts_are_not_normalised() -> None:
    raw = (CASES / "text_unicode" / "input.jsonl").read_text()
    assert all(document.text in raw for document in (await case_documents("text_unicode")).documents)


async def test_text_files_are_named_and_unmarked() -> None:
    found = await case_documents("txt_mixed_encodings")
    assert found.ids == ["bom.txt", "good.txt", "utf16.txt"]
    assert not any("\ufeff" in document.text for document in found.documents)
    assert all(failure.shard in failure.detail for failure in found.failures)


async def test_main_namespace_pages() -> None:
    found = await case_documents("wiki_redirects_namespaces")
    assert found.ids == ["1", "8", "10"]
    assert found.documents[2].payload == {"title": "Ford & ferry"}
    assert "ford & a ferry. Depth < 1 m" in prose("mediawiki", found.documents[2].text)


async def test_wikitext_becomes_prose() -> None:
    expect = yaml.safe_load((CASES / "wiki_markup" / "expect.yaml").read_text())["expect"]
    text = prose("mediawiki", (await case_documents("wiki_markup")).documents[0].text)
    assert [needle for needle in expect["must_contain"] if needle not in text] == []
    assert [needle for needle in expect["must_not_contain"] if needle in text] == []
