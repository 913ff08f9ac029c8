"""Lines to documents."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingestor.records import Document, Failure, RawBlock, Shard
from ingestor.sources import Fields, documents
from ingestor.sources.values import MAX_DEPTH
from tests.reading import FIELDS

EVERYTHING = replace(FIELDS, metadata=None)


def parse(*lines: str | bytes, fields: Fields = EVERYTHING, shard: str = "s.jsonl") -> list[Any]:
    data = b"\n".join(line.encode() if isinstance(line, str) else line for line in lines) + b"\n"
    return list(documents(RawBlock(0, Shard(0, shard, shard, 0, ""), "jsonl", 5, 100, data), fields))


def parse_one(record: dict[str, Any] | str, fields: Fields = EVERYTHING) -> Document:
    (document,) = parse(record if isinstance(record, str) else json.dumps(record), fields=fields)
    assert isinstance(document, Document), document
    return document


def test_several_texts_are_joined_by_a_blank_line() -> None:
    fields = replace(EVERYTHING, text=("title", "body.text"))
    record = {"id": 1, "title": "Title", "body": {"text": "Body.", "n": 1}}
    document = parse_one(record, fields)
    assert (document.text, document.payload) == ("Title\n\nBody.", {"id": 1, "body": {"n": 1}})
    assert parse_one({**record, "title": ""}, fields).text == "Body."
    assert parse_one({"id": 1, "title": "Title"}, fields).text == "Title"
    (failure,) = parse(json.dumps({**record, "title": 7}), fields=fields)
    assert (failure.kind, failure.document) == ("text_not_string", "1")


def test_metadata_is_found_by_key_and_by_path() -> None:
    fields = replace(FIELDS, metadata=("meta.lang", "meta.year", "a.b", "nothing"))
    record = {"id": 1, "text": "T", "meta": {"lang": "en", "year": 1999, "more": 0}, "a.b": [1]}
    assert parse_one(record, fields).payload == {"meta": {"lang": "en", "year": 1999}, "a.b": [1]}


def test_ids_can_be_made_and_scoped() -> None:
    line = '{"id": 7, "text": "T"}'
    (made,) = parse(line, fields=replace(FIELDS, id=None), shard="a#b")
    (scoped,) = parse(line, fields=replace(FIELDS, id_scope="shard"), shard="a")
    (other,) = parse('{"id": "b#7", "text": "T"}', fields=replace(FIELDS, id_scope="shard"), shard="a")
    (third,) = parse(line, fields=replace(FIELDS, id_scope="shard"), shard="a#b")
    assert (made.id, scoped.id) == ("a%23b#5", "a#7")
    assert other.id != third.id


def test_payload_values_fit_the_database() -> None:
    numbers = f"[NaN, 1e999, {2**63 - 1}, {2**63}]"
    document = parse_one(f'{{"id": 1, "text": "a\\u0000b", "n": {numbers}, "k\\u0000": "\\ud800"}}')
    assert document.payload == {"id": 1, "n": [None, None, 2**63 - 1, str(2**63)], "k\ufffd": "\ufffd"}
    assert (document.text, document.replaced) == ("a\ufffdb", 3)


def test_large_integers_are_not_rounded() -> None:
    digits = "1" + "0" * 5000 + "1"
    assert parse_one(f'{{"id": {digits}, "text": "T", "n": -{digits}}}').payload["n"] == "-" + digits
    assert parse_one(f'{{"id": 1, "text": "T", "n": {{"m": {2**64}}}}}').payload["n"] == {"m": str(2**64)}
    assert parse_one('{"id": 1, "text": "T", "n": 1e300}').payload["n"] == 1e300


@pytest.mark.parametrize("depth", [MAX_DEPTH, 900, 100_000])
def test_what_is_nested_too_deeply_is_refused(depth: int) -> None:
    (failure,) = parse('{"id": 1, "text": "T", "n": ' + "[" * depth + "]" * depth + "}")
    assert failure.kind == "too_deep"


def test_depth_that_can_be_stored_is_kept() -> None:
    depth = MAX_DEPTH - 1
    assert parse_one('{"id": 1, "text": "T", "n": ' + "[" * depth + "]" * depth + "}").payload["n"]


def test_refusals_have_line_and_byte() -> None:
    good = '{"id": 1, "text": "T"}'
    found = parse(good, "", "{bad", good, "[1]")
    assert [record.place for record in found] == [5, 7, 8, 9]
    failures = [record for record in found if isinstance(record, Failure)]
    assert [(failure.kind, failure.offset) for failure in failures] == [
        ("bad_json", 100 + len(good) + 2),
        ("not_an_object", 100 + 2 * (len(good) + 1) + 1 + len("{bad") + 1),
    ]


@pytest.mark.parametrize(
    "text", ["", " \n\t", "\u00a0\u2003", "\u200b\u200d", "\ufeff", "\\ud800", "\\u0000\\u0007"]
)
def test_texts_of_nothing_visible_are_refused(text: str) -> None:
    (failure,) = parse('{"id": 1, "text": "' + text.replace("\n", "\\n").replace("\t", "\\t") + '"}')
    assert failure.kind == "empty_text"


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@settings(deadline=None)  # the machine may be busy
@given(st.dictionaries(st.text(), values, max_size=4), st.booleans())
def test_every_record_is_a_document_or_a_failure(extra: dict[str, Any], ascii_only: bool) -> None:
    line = json.dumps({**extra, "id": "x", "text": "T"}, ensure_ascii=ascii_only)
    (document,) = parse(line)
    assert isinstance(document, Document)
    json.dumps(document.payload, ensure_ascii=False).encode()


@settings(deadline=None)  # the machine may be busy
@given(st.binary(max_size=60))
def test_no_line_breaks_the_parser(line: bytes) -> None:
    assert all(isinstance(record, Document | Failure) for record in parse(line))
