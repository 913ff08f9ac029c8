"""What keeps a collection from being all that it is to be."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing

import pytest

from ingestor.commands.completeness import lacking
from ingestor.state.file import SCHEMA


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        ("truncated_input", []),  # a file that is still growing: the run has read what there is
        ("changed", []),
        ("unknown_tokens", ["1 shards were not read to their end (a.jsonl)"]),  # no reason to leave it
    ],
)
def test_a_shard_that_limit_left_is_not_excused_by_any_warning(kind, found) -> None:
    report = {
        "failures_open": 0,
        "documents": {"withheld": 0},
        "shard_errors": [],
        "warnings": [{"shard": "a.jsonl", "kind": kind, "detail": ""}],
    }
    with closing(sqlite3.connect(":memory:")) as file:
        file.executescript(SCHEMA)
        file.execute("INSERT INTO shards (key, name, position, current) VALUES (1, 'a.jsonl', 0, 1)")
        file.execute("INSERT INTO runs VALUES (1, 0, 1, 'complete', ?)", (json.dumps(report),))
        assert list(lacking(file, 0)) == found
