"""Whatever happens to the shards between runs, the collection ends as a fresh ingest would leave it."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingestor import settle as settle_module
from ingestor.encoding.model import resolve
from ingestor.prepare import prepare_block
from ingestor.preparing.preparer import PrepareOptions
from ingestor.records import Applied, ChunkBlock, RawBlock, Shard, ShardEnd, UInt8s
from ingestor.settle import delete_points, settle
from ingestor.sources import Fields
from ingestor.state.ledger import Ledger
from ingestor.watching.tally import Tally

SPEC = resolve("hash:8")
TOO_LONG = "x" * 80
"""For a payload."""
AHEAD = 3
"""Blocks that are prepared before the first of them is settled."""

Shards = dict[str, list[tuple[str, str]]]


class KilledError(Exception):
    pass


class Points(dict[bytes, bytes]):
    """A collection: point id to payload."""

    async def delete(self, ids: UInt8s) -> None:
        for id_ in ids:
            self.pop(id_.tobytes(), None)

    async def flush(self) -> None:
        pass


class Struck(Points):
    """A collection whose run is killed when it has deleted something."""

    async def delete(self, ids: UInt8s) -> None:
        await super().delete(ids)
        raise KilledError


class World:
    """A source, a collection and a state file."""

    def __init__(self, folder: Path) -> None:
        self.state = folder / "state.sqlite3"
        self.points = Points()
        self.embedded: list[str] = []

    def run(
        self, shards: Shards, chance: random.Random, *, lines: int, kill_after: int | None = None
    ) -> Tally:
        """Ingest under `mirror`; with `kill_after`, the run ends at that block, by a stop or by a kill."""
        with ThreadPoolExecutor(1) as thread:
            ledger = thread.submit(Ledger.open, self.state, thread).result()
            try:
                return asyncio.run(self._run(ledger, shards, chance, lines, kill_after))
            except KilledError:
                return Tally()
            finally:
                thread.submit(ledger.close).result()

    async def _run(
        self, ledger: Ledger, shards: Shards, chance: random.Random, lines: int, kill_after: int | None
    ) -> Tally:
        tally, leaving = Tally(), ledger.leaving
        self.embedded = []
        ask = partial(_ask, ledger.thread)
        listing = [
            Shard(0, name, "", 0, str(hash(tuple(records)))) for name, records in sorted(shards.items())
        ]
        plan = ask(ledger.plan, listing, b"salt")
        tally.read = plan.held + plan.lost
        tally.unchanged, tally.duplicates = plan.held, plan.lost
        if await self._pass(ledger, plan.shards, shards, chance, lines, kill_after, tally):
            return tally
        tally.take_over(ask(leaving.drop_gone))
        while waiting := ask(leaving.pending_count):
            again = ask(leaving.read_again, listing)
            await self._pass(ledger, again, shards, chance, lines, None, tally)
            if ask(leaving.pending_count) >= waiting:
                break  # what is left has no record any more
        orphans = ask(leaving.orphans, 1000)
        await delete_points(self.points, ((id_, range(chunks)) for id_, chunks in orphans), tally)
        ask(leaving.forget_orphans, [id_ for id_, _ in orphans])
        ask(leaving.count_left)
        left = ask(leaving.left, 1000)
        await delete_points(self.points, ((id_, range(chunks)) for _, id_, chunks in left), tally)
        ask(leaving.forget_left, [place for place, _, _ in left])
        assert tally.read == tally.indexed + tally.unchanged + tally.duplicates + tally.failed
        return tally

    async def _pass(
        self,
        ledger: Ledger,
        to_read: list[Shard],
        shards: Shards,
        chance: random.Random,
        lines: int,
        kill_after: int | None,
        tally: Tally,
    ) -> bool:
        blocks = [block for shard in to_read for block in _cut(shard, shards[shard.name], lines)]
        blocks = [
            RawBlock(number, b.shard, b.format, b.place, b.offset, b.data, end=b.end)
            for number, b in enumerate(blocks)
        ]
        killed = kill_after is not None and kill_after < len(blocks)

        async def events():
            waiting: list[ChunkBlock] = []
            for start in range(0, len(blocks), AHEAD):
                for found, chunks in [
                    prepare_block(_options(self.state), block) for block in blocks[start : start + AHEAD]
                ]:
                    _ask(ledger.thread, ledger.intents.note, found)
                    if killed and found.block == kill_after:
                        for chunks_ in waiting:
                            self._apply(chunks_, chance)
                        if chance.random() < 0.5:
                            raise KilledError
                        return
                    yield found
                    waiting.append(chunks)
                    if chance.random() < 0.5:
                        while waiting:
                            for answer in self._apply(waiting.pop(0), chance):
                                yield answer
            for chunks in waiting:
                for answer in self._apply(chunks, chance):
                    yield answer

        unsettled = await settle(events(), sinks=self.points, ledger=ledger, tally=tally, window=AHEAD + 1)
        assert killed or not unsettled
        return killed

    def _apply(self, chunks: ChunkBlock, chance: random.Random) -> list[Applied]:
        """Write a block's points in any order, in up to two requests."""
        order = list(range(len(chunks.points)))
        chance.shuffle(order)
        points = chunks.points.take(np.array(order, np.intp))
        for id_, payload in zip(points.ids, points.payloads, strict=True):
            self.points[id_.tobytes()] = payload
            stored = orjson.loads(payload)
            if stored["chunk"] == 0:
                self.embedded.append(stored["document"])
        middle = chance.randint(0, len(order))
        return [Applied(part) for part in (points.documents[:middle], points.documents[middle:]) if len(part)]


def _ask(thread, method, *arguments):
    """Run a ledger's method in the ledger's thread."""
    return thread.submit(method, *arguments).result()


def _options(state: Path) -> PrepareOptions:
    fields = Fields(("text",), "id", "collection", ())
    return PrepareOptions(fields, SPEC, 4, 1, 100, b"salt", str(state), max_payload_bytes=140)


def _cut(shard: Shard, records: list[tuple[str, str]], lines: int) -> list[RawBlock]:
    blocks = []
    for start in range(0, len(records), lines):
        data = b"".join(
            orjson.dumps({"id": id_, "text": text}) + b"\n" for id_, text in records[start : start + lines]
        )
        blocks.append(RawBlock(0, shard, "jsonl", start + 1, 0, data))
    return [*blocks, RawBlock(0, shard, "jsonl", len(records) + 1, 0, b"", end=ShardEnd(finished=True))]


def _expected(shards: Shards) -> dict[str, str]:
    """The last record with an id wins."""
    return {id_: text for _, records in sorted(shards.items()) for id_, text in records}


RECORDS = st.lists(
    st.tuples(
        st.sampled_from("abcdef"),
        st.sampled_from(["one", "one two three four five six", "seven", "eight nine ten eleven twelve"]),
    ),
    max_size=6,
)
SHARDS = st.dictionaries(st.sampled_from(["s1", "s2", "s3"]), RECORDS, max_size=3)
IN_DELETING = 6
"""In place of the number of the block at which a run is killed."""
RUNS = st.lists(st.tuples(SHARDS, st.none() | st.integers(0, IN_DELETING)), min_size=1, max_size=5)


@pytest.mark.whole
@settings(max_examples=200, deadline=None)
@given(runs=RUNS, lines=st.integers(1, 4), seed=st.integers(0, 2**16), flush_s=st.sampled_from((0.0, 1.0)))
def test_any_history(runs: list[tuple[Shards, int | None]], lines: int, seed: int, flush_s: float) -> None:
    chance = random.Random(seed)
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as folder, TemporaryDirectory() as other:
        patch.setattr(settle_module, "FLUSH_S", flush_s)
        world = World(Path(folder))
        sure: dict[str, str] | None = None
        for shards, kill_after in runs:
            before, wanted = sure, _expected(shards)
            world.points = (Struck if kill_after == IN_DELETING else Points)(world.points)
            tally = world.run(shards, chance, lines=lines, kill_after=kill_after)
            sure = wanted if tally.read and _whole(world, wanted) else None
            if before is not None and sure is not None:
                plain = {id_ for id_, text in before.items() if _records(shards, id_) == {text}}
                assert not plain & set(world.embedded)  # nothing of what was there was embedded
        world.points = Points(world.points)
        world.run(shards, chance, lines=lines)
        fresh = World(Path(other))
        fresh.run(shards, chance, lines=100)
        assert _texts(fresh.points) == _texts(world.points)
        assert {orjson.loads(p)["document"] for p in world.points.values()} == set(_expected(shards))
        world.run(shards, chance, lines=lines)
        assert world.embedded == []


def _records(shards: Shards, id_: str) -> set[str]:
    """The texts of all records with an id."""
    return {text for records in shards.values() for other, text in records if other == id_}


def _whole(world: World, wanted: dict[str, str]) -> bool:
    """Whether a run ended with nothing left to do."""
    documents = {orjson.loads(payload)["document"] for payload in world.points.values()}
    with closing(sqlite3.connect(world.state)) as file:
        doubts = file.execute("SELECT (SELECT COUNT(*) FROM pending) + (SELECT COUNT(*) FROM intents)")
        return documents == wanted.keys() and doubts.fetchone() == (0,)


def _texts(points: Points) -> dict[tuple[str, int], str]:
    stored = [orjson.loads(payload) for payload in points.values()]
    return {(s["document"], s["chunk"]): s["text"] for s in stored}


def test_the_last_record_wins_across_blocks_and_shards(tmp_path: Path) -> None:
    world = World(tmp_path)
    shards = {"s1": [("a", "one"), ("b", "two"), ("a", "three")], "s2": [("a", "four"), ("c", "five")]}
    tally = world.run(shards, random.Random(0), lines=1)
    assert (tally.read, tally.indexed, tally.duplicates) == (5, 3, 2)
    assert _texts(world.points) == {("a", 0): "four", ("b", 0): "two", ("c", 0): "five"}
    assert world.run(shards, random.Random(0), lines=1).unchanged == 3


@pytest.mark.parametrize("seed", range(4))
def test_a_later_record_of_a_killed_run_is_gone(tmp_path: Path, monkeypatch, seed) -> None:
    """The earlier one in the same shard was recorded when the points of the later one were written."""
    monkeypatch.setattr(settle_module, "FLUSH_S", 0.0)
    world, chance = World(tmp_path), random.Random(seed)
    first = [("a", "one"), ("b", "two")]
    world.run({"s": first}, chance, lines=1)
    world.run({"s": [*first, ("a", "x " * 9), ("c", "y")]}, chance, lines=1, kill_after=3)
    world.run({"s": first}, chance, lines=1)
    assert _texts(world.points) == {("a", 0): "one", ("b", 0): "two"}


@pytest.mark.parametrize("then", [[("b", "two")], [("b", "two"), ("a", TOO_LONG)]], ids=["left", "failed"])
def test_what_a_killed_run_deleted_may_come_back(tmp_path: Path, then) -> None:
    world, chance = World(tmp_path), random.Random(0)
    first = [("a", "one"), ("b", "two")]
    world.run({"s": first}, chance, lines=9)
    world.points = Struck(world.points)
    world.run({"s": then}, chance, lines=9)
    assert _texts(world.points) == {("b", 0): "two"}
    world.points = Points(world.points)
    world.run({"s": first}, chance, lines=9)
    assert _texts(world.points) == {("a", 0): "one", ("b", 0): "two"}


def test_a_loser_takes_over_when_the_winner_leaves(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.run({"s1": [("a", "one two")], "s2": [("a", "three"), ("b", "x")]}, random.Random(0), lines=9)
    world.run({"s1": [("a", "one two")], "s2": [("b", "x")]}, random.Random(0), lines=9)
    assert _texts(world.points) == {("a", 0): "one two", ("b", 0): "x"}
    assert world.embedded == ["a"]


def test_moved_documents_are_not_embedded_again(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.run({"s1": [("a", "one"), ("b", "two")]}, random.Random(0), lines=1)
    tally = world.run({"s0": [("b", "two"), ("a", "one")]}, random.Random(0), lines=1)
    assert (tally.read, tally.unchanged, world.embedded) == (2, 2, [])


@pytest.mark.parametrize(("old", "new"), [("s1", "s2"), ("s2", "s1")])
def test_what_moves_between_shards_that_stay_is_not_embedded_again(tmp_path: Path, old, new) -> None:
    world = World(tmp_path)
    world.run({old: [("a", "one"), ("b", "two")], new: [("c", "three")]}, random.Random(0), lines=1)
    tally = world.run({old: [("a", "one")], new: [("b", "two"), ("c", "three")]}, random.Random(0), lines=1)
    assert (tally.read, tally.unchanged, world.embedded) == (3, 3, [])
    assert _texts(world.points) == {("a", 0): "one", ("b", 0): "two", ("c", 0): "three"}


def test_an_equal_record_takes_over_without_being_embedded_again(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.run({"s1": [("a", "one")], "s2": [("a", "two"), ("a", "one")]}, random.Random(0), lines=1)
    world.run({"s1": [("a", "one")], "s2": []}, random.Random(0), lines=1)
    assert (_texts(world.points), world.embedded) == ({("a", 0): "one"}, [])


def test_an_edit_leaves_no_surplus_chunk(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.run({"s": [("a", "one two three four five six seven eight")]}, random.Random(0), lines=1)
    assert len(world.points) > 1
    tally = world.run({"s": [("a", "one")]}, random.Random(0), lines=1)
    assert _texts(world.points) == {("a", 0): "one"}
    assert tally.points_deleted > 0


def test_a_record_that_gave_way_to_one_that_is_gone_takes_over(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.run({"s2": [("a", "two")], "s3": [("a", "one")] * 3}, random.Random(0), lines=1)
    world.run({"s3": [("a", "one"), ("a", "two")]}, random.Random(0), lines=1)
    assert _texts(world.points) == {("a", 0): "two"}
