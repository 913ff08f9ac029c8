"""Payloads that fit a request, and what becomes of those that do not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import orjson
import pytest

from ingestor.preparing.chunk import Chunk
from ingestor.preparing.payloads import Payloads, PayloadTooLargeError
from ingestor.records import Document
from tests.running import Workplace


def chunk(text: str) -> Chunk:
    return Chunk(text, np.zeros(1, np.int32))


def test_each_chunk_has_the_metadata_and_its_own_text() -> None:
    document = Document("d", "ab", {"title": "T", "text": "not this"}, 1)
    framed, left_out = Payloads("json", 1000, trim=False).frame(document, [chunk("a"), chunk("b")], b"\x01")
    own = {"title": "T", "document": "d", "chunks": 2, "hash": "01"}
    assert [orjson.loads(payload) for payload in framed] == [
        {**own, "text": "a", "chunk": 0},
        {**own, "text": "b", "chunk": 1},
    ]
    assert left_out == ()


@pytest.mark.parametrize("form", ["json", "protobuf"])
def test_the_largest_fields_are_left_out_until_the_rest_fits(form: str) -> None:
    fields = {"small": "s", "large": "l" * 700, "larger": ["x" * 400, "y" * 400], "some": "m" * 300}
    document = Document("d", "a", fields, 1)
    framed, left_out = Payloads(form, 600, trim=True).frame(document, [chunk("a")], b"\x01")
    assert left_out == ("larger", "large")
    assert b"m" * 300 in framed[0]
    assert document.payload == fields
    with pytest.raises(PayloadTooLargeError) as told:
        Payloads(form, 600, trim=False).frame(document, [chunk("a")], b"\x01")
    assert told.value.size > 1800


def test_what_is_too_large_without_metadata_fails() -> None:
    document = Document("d" * 700, "a", {"title": "T"}, 1)
    with pytest.raises(PayloadTooLargeError):
        Payloads("json", 600, trim=True).frame(document, [chunk("a")], b"\x01")


@pytest.mark.slow
def test_trimming_takes_in_what_had_failed_and_nothing_else(tmp_path: Path) -> None:
    place = Workplace(tmp_path, source={"metadata_fields": "*"})
    place.write(
        "a.jsonl", [{"id": 1, "text": "One."}, {"id": 2, "text": "Two.", "n": 2, "big": "x" * (8 << 20)}]
    )
    assert place.run(code=3).documents == {"read": 2, "indexed": 1, "failed": 1}
    place.configure(source={"metadata_fields": "*", "oversized": "trim"})
    ended = place.run()
    assert ended.documents == {"read": 2, "indexed": 1, "unchanged": 1}
    assert [(warning["kind"], warning["detail"]) for warning in ended.report["warnings"]] == [
        ("trimmed", "2: stored without big")
    ]
    assert {payload.get("n") for _, payload in place.points().values()} == {None, 2}
    assert place.run().documents == {"read": 2, "unchanged": 2}
