"""Files with new dates and old bytes are not read again."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import sqlite3
from contextlib import closing

import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from tests.running import Workplace, documents

pytestmark = pytest.mark.whole


@pytest.fixture
def place(tmp_path) -> Workplace:
    """A plain shard, a packed one, and one that is read here and there; all are ingested."""
    made = Workplace(tmp_path)
    made.write("a.jsonl", documents(6000))  # more than one piece
    lines = "".join(json.dumps(document) + "\n" for document in documents(20, start=6000))
    (made.shards / "b.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    pq.write_table(pa.Table.from_pylist(documents(20, start=6020)), made.shards / "c.parquet")
    assert made.end(made.start_warm_run()).documents == {"read": 6040, "indexed": 6040}
    return made


def test_touched_copied_and_made_anew(place):
    (place.shards / "a.jsonl").touch()
    (place.shards / "b.jsonl.gz").chmod(0o600)
    shutil.copyfile(place.shards / "c.parquet", place.shards / "new")
    (place.shards / "new").replace(place.shards / "c.parquet")
    ended = place.run()
    assert ended.documents == {"read": 6040, "unchanged": 6040}
    assert ended.report["shards"]["unchanged"] == 3
    assert ended.report["stages"] == {}  # no process was started, no torch imported


def test_other_bytes_of_the_same_size(place):
    """One with its old date, too: what is not the same file is looked at."""
    path = place.shards / "a.jsonl"
    status, data = path.stat(), path.read_bytes()
    path.write_bytes(data.replace(b"Document 17:", b"Document 71:"))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    ended = place.run()
    assert ended.documents == {"read": 6040, "indexed": 1, "unchanged": 6039}
    assert ended.report["shards"]["unchanged"] == 2


def test_full_reads_all(place):
    (place.shards / "a.jsonl").touch()
    ended = place.end(place.start_warm_run("--full"))
    assert ended.documents == {"read": 6040, "indexed": 6040}


def test_a_state_file_from_before_there_were_digests(place):
    """Nothing is lost; what is touched is read once more, and known from then on."""
    with closing(sqlite3.connect(place.state)) as file:
        file.executescript("ALTER TABLE shards DROP COLUMN digest; PRAGMA user_version = 1")
    assert json.loads(place.ask("status", "--json").out)["documents"] == 6040
    assert place.run().report["stages"] == {}
    (place.shards / "a.jsonl").touch()
    read = place.run()
    assert read.documents == {"read": 6040, "unchanged": 6040}
    assert read.report["shards"]["unchanged"] == 2
    assert set(read.report["stages"]) == {"read", "prepare", "settle"}  # no encoder was opened
    (place.shards / "a.jsonl").touch()
    assert place.run().report["stages"] == {}
