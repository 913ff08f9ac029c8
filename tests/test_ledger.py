"""The state file: what it passes over, what it remembers of an interrupted run, and what it refuses."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import numpy as np
import pytest

from ingestor.errors import ConfigError, NothingThereError, ResourceError
from ingestor.records import Census, Failure, Shard, Verdict
from ingestor.state.failures import read_failures
from ingestor.state.identity import as_ids, document_key
from ingestor.state.ledger import Ledger
from ingestor.state.lookup import LedgerReader, read_status
from ingestor.state.writes import Records, Writes


@pytest.fixture
def ledger(tmp_path):
    """A ledger whose methods run in this thread, as the thread that opened it."""
    opened = Ledger.open(tmp_path / "state.sqlite3", ThreadPoolExecutor(1))
    yield opened
    opened.close()
    opened.thread.shutdown()


def listing(**shards: str) -> list[Shard]:
    """Shards by name, with their fingerprints."""
    return [Shard(0, name, f"/{name}", 1, fingerprint) for name, fingerprint in sorted(shards.items())]


def census(shard: Shard, *ids: str, chunks: int = 2) -> Census:
    """A block of new documents."""
    n = len(ids)
    return Census(
        block=0,
        shard=shard,
        ids=list(ids),
        keys=np.array([document_key(id_) for id_ in ids], np.int64),
        places=np.arange(1, n + 1),
        hashes=as_ids(b"".join(id_.encode().ljust(16)[:16] for id_ in ids)),
        verdicts=np.full(n, Verdict.NEW, np.uint8),
        chunks=np.full(n, chunks, np.int32),
        stored=np.zeros(n, np.int32),
        known=np.zeros(n, np.bool_),
    )


def record(ledger: Ledger, block: Census, *rows: int) -> None:
    ledger.record(Writes(records=[Records.of(block, np.array(rows))]))


def test_only_a_finished_shard_that_has_not_changed_is_passed_over(ledger):
    first = ledger.plan(listing(a="1", b="1"), b"salt")
    assert [shard.name for shard in first.shards] == ["a", "b"]
    record(ledger, census(first.shards[0], "x", "y"), 0, 1)
    ledger.finish(first.shards[0])

    again = ledger.plan(listing(a="1", b="1"), b"salt")
    assert ([shard.name for shard in again.shards], again.unchanged, again.held) == (["b"], 1, 2)
    assert [shard.name for shard in ledger.plan(listing(a="2", b="1"), b"salt").shards] == ["a", "b"]


def test_rows_of_a_block_are_kept_as_they_are(ledger, tmp_path):
    (shard,) = ledger.plan(listing(a="1"), b"").shards
    ids = ['say "x"', "a\\b", "line\nend", "\u00e9\U0001f600", "", "7", "[1,2]"]
    block = census(shard, *ids)
    block.keys[0], block.keys[1] = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    block.chunks[:] = np.arange(1, len(ids) + 1)
    record(ledger, block, *range(len(ids)))
    found = LedgerReader(str(tmp_path / "state.sqlite3")).rows(block.keys.tolist())
    assert list(found) == ids
    assert [(row.place, row.hash, row.chunks) for (row,) in found.values()] == [
        (place, hash_.tobytes(), place) for place, hash_ in enumerate(block.hashes, 1)
    ]


def test_another_way_to_read_makes_every_shard_new(ledger):
    ledger.finish(ledger.plan(listing(a="1"), b"salt").shards[0])
    assert ledger.plan(listing(a="1"), b"salt").shards == []
    assert len(ledger.plan(listing(a="1"), b"pepper").shards) == 1
    assert len(ledger.plan(listing(a="1"), b"salt", full=True).shards) == 1


def test_what_was_under_way_when_a_run_was_killed_is_in_doubt(ledger, tmp_path):
    (shard,) = ledger.plan(listing(a="1"), b"").shards
    block = census(shard, "recorded", "written", chunks=3)
    ledger.intents.note(block)
    record(ledger, block, 0)

    ledger.plan(listing(a="1"), b"")
    reader = LedgerReader(str(tmp_path / "state.sqlite3"))
    assert reader.pending(block.keys.tolist()) == {"written": 3}
    assert [row.chunks for row in reader.rows(block.keys.tolist())["recorded"]] == [3]
    assert ledger.leaving.orphans(9) == [("written", 3)]
    ledger.leaving.forget_orphans(["written"])
    assert ledger.leaving.pending_count() == 0


def test_a_complete_block_leaves_nothing_in_doubt(ledger):
    (shard,) = ledger.plan(listing(a="1"), b"").shards
    block = census(shard, "x")
    ledger.intents.note(block)
    ledger.record(Writes(records=[Records.of(block, np.array([0]))], complete=[0]))
    ledger.plan(listing(a="1"), b"")
    assert ledger.leaving.pending_count() == 0


def test_what_left_is_kept_until_it_is_deleted(ledger):
    shards = ledger.plan(listing(a="1", b="1"), b"").shards
    for shard, id_ in zip(shards, ("x", "y"), strict=True):
        record(ledger, census(shard, id_), 0)
        ledger.finish(shard)
    ledger.plan(listing(a="1"), b"")
    ledger.leaving.drop_gone()
    assert ledger.leaving.count_left() == 1
    assert ledger.totals() == (2, 4, 0)
    (left,) = ledger.leaving.left(9)
    assert left[1:] == ("y", 2)
    assert (ledger.totals(), ledger.leaving.orphans(9)) == ((1, 2, 0), [("y", 2)])  # should a kill come now
    ledger.leaving.forget_left([left[0]])
    assert (ledger.totals(), ledger.leaving.orphans(9)) == ((1, 2, 0), [])
    assert ledger.leaving.count_left() == 0


def test_failures_of_an_earlier_reading_are_cleared_by_the_next(ledger):
    (shard,) = ledger.plan(listing(a="1"), b"").shards
    ledger.record(Writes(failures=[(Failure("a", 7, "bad_json", "no"), shard.key)]))
    ledger.finish(shard)
    assert ledger.totals()[2] == 1
    (shard,) = ledger.plan(listing(a="2"), b"").shards
    ledger.finish(shard)
    assert ledger.totals()[2] == 0


def test_errors_of_a_reading_and_of_the_listing(ledger, tmp_path):
    (shard,) = ledger.plan(listing(a="1"), b"").shards
    ledger.record(Writes(failures=[(Failure("a", 7, "bad_json", "no"), shard.key)]))
    ledger.failures.set_listing([("private", "unreadable", "Permission denied")])
    (shard,) = ledger.plan(listing(a="1"), b"").shards
    ledger.failures.break_off(shard, [("truncated_input", "at byte 9"), ("vanished", "gone")])
    open_ones = list(read_failures(tmp_path / "state.sqlite3"))
    assert [(one.shard, one.place, one.kind) for one in open_ones] == [
        ("a", None, "vanished"),
        ("a", None, "truncated_input"),
        ("private", None, "unreadable"),
    ]
    ledger.failures.set_listing([])
    ledger.finish(*ledger.plan(listing(a="1"), b"").shards)
    assert ledger.failures.count() == 0


def test_a_failure_keeps_the_time_when_it_was_first_met(ledger, tmp_path, monkeypatch):
    for moment, kind in ((10.0, "bad_json"), (20.0, "bad_json"), (30.0, "bad_id")):
        monkeypatch.setattr("time.time", lambda now=moment: now)
        [shard] = ledger.plan(listing(a="1"), b"salt", retry=True).shards
        ledger.failures.set_listing([("private", "unreadable", "Permission denied")])
        ledger.record(Writes(failures=[(Failure("a", 7, kind, "no"), shard.key)]))
        ledger.finish(shard)
        times = [one.time for one in read_failures(tmp_path / "state.sqlite3")]
        assert times == [10.0 if kind == "bad_json" else 30.0, 10.0]


def test_shards_with_open_failures_are_read_again_when_asked(ledger):
    for shard in ledger.plan(listing(a="1", b="1"), b"").shards:
        ledger.finish(shard)
        if shard.name == "b":
            ledger.failures.add([(Failure("b", 7, "bad_json", "no"), shard.key)])
    assert ledger.plan(listing(a="1", b="1"), b"").shards == []
    assert [shard.name for shard in ledger.plan(listing(a="1", b="1"), b"", retry=True).shards] == ["b"]


def test_a_recreation_that_was_cut_short_is_remembered(ledger):
    ledger.set_identity("{}")
    for name in ("calibration", "quality"):
        ledger.set_meta(name, b"of the old model")
    before = ledger.state_id
    ledger.forget()
    assert before != ledger.state_id == ledger.meta("state_id")
    assert ledger.meta("calibration") is ledger.meta("quality") is None
    assert ledger.meta("recreate") is not None
    ledger.set_identity("{}")
    assert ledger.meta("recreate") is None


def test_status_reads_the_file_alone(ledger, tmp_path):
    (shard,) = ledger.plan(listing(a="1"), b"").shards
    record(ledger, census(shard, "x"), 0)
    ledger.set_identity('{"model": "m"}')
    ledger.end_run(ledger.start_run(), "complete", "{}")
    found = read_status(tmp_path / "state.sqlite3")
    assert (found["documents"], found["points"], found["failures"]) == (1, 2, 0)
    assert (found["identity"], found["state_id"]) == ({"model": "m"}, ledger.state_id)
    assert found["last_run"]["status"] == "complete"


@pytest.mark.parametrize("content", [b"hello", b"SQLite format 3\0" + b"x" * 100])
def test_no_state_file(tmp_path, content):
    path = tmp_path / "s"
    path.write_bytes(content)
    with ThreadPoolExecutor(1) as thread, pytest.raises(ConfigError, match="not a state file"):
        Ledger.open(path, thread)
    with pytest.raises(ConfigError, match="not a state file"):
        read_status(path)


def test_another_schema_is_refused_with_a_way_out(tmp_path):
    path = tmp_path / "s"
    with closing(sqlite3.connect(path)) as file:
        file.execute("CREATE TABLE t (x)")
        file.execute("PRAGMA user_version = 99")
    with ThreadPoolExecutor(1) as thread, pytest.raises(ConfigError, match=r"schema 99.*--recreate"):
        Ledger.open(path, thread)


def test_no_state_yet(tmp_path):
    with pytest.raises(NothingThereError, match="nothing was ingested"):
        read_status(tmp_path / "s")


@pytest.mark.parametrize("name", ["s#1.sqlite3", "100%.sqlite3", "what?.sqlite3", "a b.sqlite3"])
def test_any_file_name_will_do(tmp_path, name):
    with ThreadPoolExecutor(1) as thread:
        Ledger.open(tmp_path / name, thread).close()
    assert LedgerReader(str(tmp_path / name)).rows([1]) == {}
    assert read_status(tmp_path / name)["documents"] == 0


def test_an_error_of_reading_is_told_in_words(tmp_path):
    with pytest.raises(ResourceError, match="s: unable to open database file"):
        LedgerReader(str(tmp_path / "s"))
    (tmp_path / "s").write_text("nothing of the kind" * 100)
    reader = LedgerReader(str(tmp_path / "s"))
    for look_up in (reader.rows, reader.pending):
        with pytest.raises(ConfigError, match="not a state file"):
            look_up([1])
    reader.close()


async def test_an_error_of_the_file_is_told_in_words(tmp_path):
    with ThreadPoolExecutor(1) as thread:
        ledger = thread.submit(Ledger.open, tmp_path / "s", thread).result()
        (shard,) = thread.submit(ledger.plan, listing(a="1"), b"").result().shards
        thread.submit(ledger._file.execute, "PRAGMA max_page_count = 1").result()
        block = census(shard, *(f"document {number}" for number in range(2000)))
        with pytest.raises(ResourceError, match="no room"):
            await ledger.run(ledger.record, Writes(records=[Records.of(block, np.arange(2000))]))
        thread.submit(ledger.close).result()
