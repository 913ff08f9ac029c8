"""Whatever is done to the shards, and however runs end: a complete run leaves what a fresh one would."""

from __future__ import annotations

import gzip
import json
import os
import signal
import sqlite3
import subprocess
import time
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    rule,
    run_state_machine_as_test,
)

from ingestor.buffers import sweep
from tests.running import Ended, Workplace, children, have_ended, kill_alone, same_points, workers

STEPS_A_HISTORY = 25
UNUSED = "-" * 3000
"""In each record, so that a shard is several blocks."""
LONGEST_S = 4.0
"""Runs are struck within so many seconds: later they have ended, as a rule."""
SETTINGS: dict[str, Any] = {
    "source": {"paths": ["shards"], "sync": "mirror", "max_delete_fraction": 1.0},
    "chunk": {"max_tokens": 12, "overlap_tokens": 2},
    "pipeline": {"buffers": 3, "buffer_bytes": 16 * 64 * 4},  # small, so that much is recorded on the way
}
NAMES = ("a.jsonl", "b.jsonl", "c.jsonl.gz", "d.jsonl", "e.jsonl.gz", "f.jsonl")
NUMBERS = st.integers(0, 2999)
KINDS = (
    "edit",
    "add",
    "delete",
    "duplicate",
    "move",
    "rename",
    "truncate",
    "mend",
    "mend",
    "touch",
    "remove",
)
WORKS = st.lists(
    st.tuples(st.sampled_from(KINDS), NUMBERS, NUMBERS, NUMBERS, st.integers(1, 150), NUMBERS),
    min_size=1,
    max_size=4,
)
Work = list[tuple[str, int, int, int, int, int]]
PROCESSES = st.integers(1, 3)
MOMENTS = st.floats(0, 1)


@dataclass
class Shard:
    """Records (id, text), and how much of the last one is missing from the file, from 0 to 1."""

    records: list[tuple[str, str]] = field(default_factory=list)
    missing: float = 0.0

    def data(self, name: str) -> bytes:
        lines = [
            json.dumps({"id": id_, "text": text, "unused": UNUSED}).encode() + b"\n"
            for id_, text in self.records
        ]
        if not name.endswith(".gz"):
            whole = b"".join(lines)
            return whole[: len(whole) - int(self.missing * len(lines[-1]))] if self.missing else whole
        packed = gzip.compress(b"".join(lines), 1, mtime=0)
        return packed[: int(len(packed) * (1 - self.missing))] if self.missing else packed


def text_of(number: int) -> str:
    """A text of one to five chunks."""
    return " ".join(str(number * factor % 997) for factor in range(3, 4 + number % 40))


class Histories(RuleBasedStateMachine):
    """A folder of shards that people work on, and runs over it."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory(prefix="incremental-")
        self.place = Workplace(Path(self.folder.name, "place"), **SETTINGS)
        self.shards: dict[str, Shard] = {}
        self.usual_s = 2.0

    def teardown(self) -> None:
        self.folder.cleanup()

    @initialize(counts=st.lists(st.integers(20, 300), min_size=2, max_size=3))
    def begin(self, counts: list[int]) -> None:
        start = 0
        for name, count in zip(NAMES, counts, strict=False):
            self.shards[name] = Shard([(f"d{n}", text_of(n)) for n in range(start, start + count)])
            self.write(name)
            start += count

    # What people do to shards

    def work(self, work: Work) -> None:
        for kind, *numbers in work:
            getattr(self, kind)(*numbers)

    def edit(self, shard: int, _: int, place: int, count: int, number: int) -> None:
        """Give some records in a row other texts, or the texts that they have had."""
        name, records = self.records(shard)
        for at in range(place % len(records), min(len(records), place % len(records) + count)):
            records[at] = (records[at][0], text_of(number + at))
        self.write(name)

    def add(self, shard: int, _: int, place: int, count: int, number: int) -> None:
        """Add records; some have ids that others have, too."""
        name, records = self.records(shard)
        at = place % len(records)
        records[at:at] = [(f"d{n}", text_of(n)) for n in range(number, number + count)]
        self.write(name)

    def delete(self, shard: int, _: int, place: int, count: int, __: int) -> None:
        name, records = self.records(shard)
        start = max(1, place % len(records))  # one stays
        del records[start : start + count]
        self.write(name)

    def duplicate(self, shard: int, other: int, place: int, count: int, number: int) -> None:
        """Copy records to the end of a shard, with the same text or another."""
        _, records = self.records(shard)
        name, there = self.records(other)
        some = records[place % len(records) :][:count]
        there += [(id_, text_of(number) if number % 2 else text) for id_, text in some]
        self.write(name)

    def move(self, shard: int, other: int, place: int, count: int, _: int) -> None:
        """Take records from one shard to another."""
        name, records = self.records(shard)
        there_name, there = self.records(other)
        start = max(1, place % len(records))
        some = records[start : start + count]
        del records[start : start + count]
        there += some
        self.write(name)
        self.write(there_name)

    def rename(self, shard: int, other: int, *_: int) -> None:
        """Give a shard another name, or begin a new one with half of its records."""
        old, records = self.records(shard)
        name = NAMES[other % len(NAMES)]
        if name not in self.shards:
            self.shards[name] = Shard(records[len(records) // 2 :])
            del records[len(records) // 2 :]
            if not records:
                self.remove_file(old)
            else:
                self.write(old)
            self.write(name)

    def truncate(self, shard: int, other: int, *_: int) -> None:
        """Cut the file short, as somebody does who is still writing it."""
        name, _records = self.records(shard)
        self.shards[name].missing = 0.1 + other % 80 / 100
        self.write(name)

    def mend(self, *_: int) -> None:
        for name, shard in self.shards.items():
            if shard.missing:
                shard.missing = 0.0
                self.write(name)

    def touch(self, shard: int, *_: int) -> None:
        self.write(self.records(shard)[0])

    def remove(self, shard: int, *_: int) -> None:
        if len(self.shards) > 1:
            self.remove_file(self.records(shard)[0])

    # Runs

    @rule(work=WORKS, prepare=PROCESSES)
    def run(self, work: Work, prepare: int) -> None:
        self.work(work)
        before, since = stored_hashes(self.place), time.monotonic()
        ended = self.place.end(self.place.start_warm_run(*options(prepare)))
        seconds = time.monotonic() - since
        self.usual_s = min(max(self.usual_s, seconds), LONGEST_S)
        print(f"run in {seconds:.1f} s: exit code {ended.code}, {ended.documents}")
        self.check(before, ended)

    @rule(work=WORKS, prepare=PROCESSES, moment=MOMENTS, victim=st.sampled_from(("main", "prepare", "sink")))
    def killed_run(self, work: Work, prepare: int, moment: float, victim: str) -> None:
        self.work(work)
        process = self.place.start_warm_run(*options(prepare))
        with suppress(subprocess.TimeoutExpired):
            process.wait(moment * self.usual_s)
        if victim == "main":
            handles = kill_alone(process)
            print(f"main killed after {moment * self.usual_s:.2f} s")
        else:
            handles = [os.pidfd_open(child) for child in children(process.pid)]
            if child := workers(process.pid).get(victim):
                with suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
            ended = self.place.end(process)
            print(f"{victim} killed after {moment * self.usual_s:.2f} s, exit code {ended.code}")
            assert ended.code in (0, 1, 3), ended.err
        assert have_ended(handles)

    @rule(work=WORKS, prepare=PROCESSES, moment=MOMENTS)
    def stopped_run(self, work: Work, prepare: int, moment: float) -> None:
        self.work(work)
        before = stored_hashes(self.place)
        process = self.place.start_warm_run(*options(prepare))
        with suppress(subprocess.TimeoutExpired):
            process.wait(moment * self.usual_s)
        process.send_signal(signal.SIGTERM)
        ended = self.place.end(process)
        assert ended.code in (0, 3, 143, -signal.SIGTERM), ended.err  # the last before it listens
        print(f"stopped after {moment * self.usual_s:.2f} s, exit code {ended.code}")
        if ended.code in (0, 3):
            self.check(before, ended)
        elif ended.code == 143:
            assert ended.report["status"] == "stopped"
            self.check_indexed(before, ended)

    # What must hold

    def check(self, before: dict[str, str], ended: Ended) -> None:
        """After a run that ended by itself."""
        broken = [name for name, shard in self.shards.items() if shard.missing]
        packed = any(name.endswith(".gz") for name in broken)
        assert ended.code == (3 if packed else 0), ended.err
        self.check_indexed(before, ended)
        assert sweep(str(self.place.state.resolve())) == 0
        if broken:
            return  # such a shard is not finished, and what it does not show may come back
        points = self.place.points()
        assert {payload["document"] for _, payload in points.values()} == {
            id_ for shard in self.shards.values() for id_, _ in shard.records
        }
        with TemporaryDirectory(prefix="fresh-") as folder:
            fresh = Workplace(Path(folder), **SETTINGS)
            fresh.configure(**SETTINGS | {"source": SETTINGS["source"] | {"paths": [str(self.place.shards)]}})
            assert fresh.end(fresh.start_warm_run()).code == 0
            assert same_points(fresh.points(), points)

    def check_indexed(self, before: dict[str, str], ended: Ended) -> None:
        """Nothing was embedded that was stored, but where a document has several records that differ: which
        of them is the last one may be known too late.
        """
        texts: dict[str, set[str]] = {}
        for shard in self.shards.values():
            for id_, text in shard.records:
                texts.setdefault(id_, set()).add(text)
        after = stored_hashes(self.place)
        changed = {id_ for id_, hash_ in after.items() if before.get(id_) != hash_}
        contested = {id_ for id_, found in texts.items() if len(found) > 1}
        indexed = ended.report["documents"]["indexed"]
        assert len(changed) <= indexed <= len(changed | contested), (
            indexed,
            len(contested),
            {id_: (before.get(id_), after[id_]) for id_ in changed},
        )

    # Helpers

    def records(self, number: int) -> tuple[str, list[tuple[str, str]]]:
        name = sorted(self.shards)[number % len(self.shards)]
        return name, self.shards[name].records

    def remove_file(self, name: str) -> None:
        del self.shards[name]
        (self.place.shards / name).unlink()

    def write(self, name: str) -> None:
        """Put a shard in place at once, as people should, or let it grow where it lies."""
        new = self.place.shards / f".{name}"
        new.write_bytes(self.shards[name].data(name))
        new.rename(self.place.shards / name)


def options(prepare: int) -> tuple[str, ...]:
    return ("--set", f"pipeline.prepare_processes={prepare}", "--set", "pipeline.sink_processes=2")


def stored_hashes(place: Workplace) -> dict[str, str]:
    """What the state file takes for stored and sure: id to hash of the record."""
    if not place.state.exists():
        return {}
    with closing(sqlite3.connect(place.state, timeout=60)) as file:
        if not file.execute("SELECT 1 FROM sqlite_master").fetchone():  # killed before there were tables
            return {}
        stored = dict(file.execute("SELECT id, hex(hash) FROM records WHERE chunks > 0"))
        doubtful = {id_ for (id_,) in file.execute("SELECT id FROM pending")}
        recorded = set(file.execute("SELECT shard, place FROM records WHERE chunks <> 0"))
        for shard, documents in file.execute("SELECT shard, documents FROM intents"):
            _, ids, _, places = json.loads(documents)
            doubtful.update(
                id_ for id_, place in zip(ids, places, strict=True) if (shard, place) not in recorded
            )
        return {id_: hash_ for id_, hash_ in stored.items() if id_ not in doubtful}


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_any_history_of_shards_and_runs(pytestconfig):
    """`--steps N` for more of them."""
    steps = pytestconfig.getoption("steps")
    how = settings(
        max_examples=1 + max(1, steps // STEPS_A_HISTORY),  # the first one is always the shortest there is
        stateful_step_count=min(steps, STEPS_A_HISTORY),
        deadline=None,
        database=None,
        phases=(Phase.generate,),  # making a history shorter would take hours
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(Histories, settings=how)
