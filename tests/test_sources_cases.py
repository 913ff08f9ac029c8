"""What the notes of the cases say beyond their numbers, which `test_cases` holds against them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from ingestor.sources import prose
from tests.reading import FIELDS, Reading, read_paths

CASES = Path(__file__).parent / "cases"


async def read_case(path: object, case: dict[str, Any]) -> Reading:
    fields = replace(FIELDS, text=(case["text_field"] or "text",), id=case["id_field"])
    fields = replace(fields, metadata=("title", "depth", "n"))
    return await read_paths(path, fields=fields, format=case["format"])


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


async def test_csv_cells_stay_as_they_are_written() -> None:
    found = await case_documents("csv_na_and_leading_zero_ids")
    assert found.ids == ["007", "7", "1e3", "NA", "null", "nan"]
    assert [document.text for document in found.documents[-2:]] == ["None", "NA"]
    found = await case_documents("csv_quoted_newlines")
    assert found.documents[0].text == "Two lines\r\nin one cell."
    assert found.documents[1].text.count('"') == 2


async def test_tsv_quotes_are_characters() -> None:
    texts = [document.text for document in (await case_documents("tsv_stray_quotes")).documents]
    assert texts[0] == '"Quoted from end to end"'
    assert texts[2].startswith('"')


async def test_parquet_rows_without_text() -> None:
    found = await case_documents("parquet_nested_text")
    assert [document.place for document in found.documents] == [1, 4]
    assert [failure.place for failure in found.failures] == [2, 3]
