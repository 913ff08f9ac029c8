"""status --rebuild: state files that were lost, and made again from what the collection says."""

from __future__ import annotations

import json
import random
import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import qdrant_edge as edge

from ingestor.commands.rebuild import Rebuilt, gathered, version
from ingestor.commands.vectors import calibration_of
from ingestor.config.settings import load
from ingestor.encoding.calibration import FILE, Calibration
from ingestor.lock import Lock
from ingestor.sink import Stored, open_reader
from ingestor.sink.collection import store_of
from ingestor.sink.engine import load_shard
from ingestor.state.file import NO_HASH
from ingestor.state.identity import document_key, point_id
from tests.running import DIMENSION, Workplace, documents, same_points
from tests.sinks import embedded, served, stored

pytestmark = pytest.mark.whole


@pytest.fixture(scope="module")
def well(tmp_path_factory) -> Workplace:
    """60 documents, 20 of them of several chunks, in two shards."""
    made = Workplace(tmp_path_factory.mktemp("well"))
    made.write("a.jsonl", documents(40))
    made.write("b.jsonl", documents(20, start=40, words=900))
    made.run()
    return made


@pytest.fixture
def place(well, tmp_path) -> Workplace:
    """A copy, to be spoilt."""
    shutil.copytree(well.folder, tmp_path / "copy")
    return Workplace(tmp_path / "copy")


def lose_state(place: Workplace) -> None:
    for path in place.folder.glob("state.sqlite3*"):
        path.unlink()


def update(place: Workplace, *operations: edge.UpdateOperation) -> None:
    with closing(load_shard(place.folder / "qdrant" / "things" / "0")) as shard:
        for operation in operations:
            shard.update(operation)


@pytest.mark.slow
def test_what_is_unchanged_is_not_embedded_again(place):
    recorded, points = place.recorded(), place.points()
    lose_state(place)
    asked = place.ask("status", "--rebuild", "--json")
    found = json.loads(asked.out)
    assert (found["documents"], found["points"], found["last_run"]) == (60, len(points), None)
    assert asked.err.startswith(f"state made again: 60 documents of {len(points)} points\n")
    assert found["model"] == found["identity"]["model"]
    assert place.recorded() == recorded

    edited = [*documents(39), {**documents(1, start=39)[0], "text": "another text"}]
    place.write("a.jsonl", edited)
    ended = place.run()
    assert ended.documents == {"read": 60, "indexed": 1, "unchanged": 59}
    assert ended.report["chunks"]["embedded"] == 1
    assert place.run().report["shards"] == {"seen": 2, "unchanged": 2, "failed": 0}
    assert json.loads(place.ask("verify", "--json").out)["same"]

    fresh = Workplace(place.folder / "fresh", source={"paths": [str(place.shards)]})
    fresh.run()
    assert same_points(fresh.points(), place.points())


def test_an_8_bit_model_that_nothing_knows_is_told(place):
    """Runs and searches would fit another one, and refuse the collection then."""
    kept = place.folder / "models" / "openvino-int8-a"
    fitted = Calibration("sha256:a", (np.arange(5, dtype=np.int32),), np.ones((1, 3), np.float32))
    target = embedded(place.folder / "qdrant", collection="things", dimension=DIMENSION)
    with store_of(target) as store:
        store.write_identity({**(store.identity() or {}), "calibration": fitted.id})
    lost = f"the 8-bit model {fitted.id} is not in models: bring it back there"
    assert lost in place.ask("status", "--rebuild").err
    assert f"8-bit model {fitted.id}, which the state file does not know" in place.run(code=4).errors[0]
    kept.mkdir(parents=True)
    (kept / FILE).write_bytes(fitted.to_bytes())
    assert "8-bit" not in place.ask("status", "--rebuild").err
    with closing(sqlite3.connect(place.state)) as file:
        ((stored,),) = file.execute("SELECT value FROM meta WHERE name = 'calibration'")
        assert Calibration.from_bytes(stored).id == fitted.id

        # The state file of a run that was refused knows another one.
        other = replace(fitted, revision="sha256:b").to_bytes()
        file.execute("UPDATE meta SET value = ? WHERE name = 'calibration'", (other,))
        file.commit()
    settings = load(place.folder / "c.yaml", [f"state={place.state}"], environ={})
    with closing(open_reader(target)) as reader:
        found = calibration_of(settings, reader)
    assert found is not None
    assert found.id == fitted.id


@pytest.mark.slow
def test_what_is_incomplete_is_embedded_again(place):
    before, recorded = place.points(), place.recorded()
    beyond = recorded["d53"]
    strange = before[point_id("d53", 0)][1] | {"chunk": beyond}
    update(
        place,
        edge.UpdateOperation.delete_points([point_id("d50", 0).hex()]),
        edge.UpdateOperation.delete_points([point_id("d51", recorded["d51"] - 1).hex()]),
        edge.UpdateOperation.set_payload([point_id("d52", 1).hex()], {"hash": "11" * 16}),
        edge.UpdateOperation.upsert_points(
            [edge.Point(point_id("d53", beyond).hex(), before[point_id("d53", 0)][0].data, strange)]
        ),
        edge.UpdateOperation.set_payload([point_id("d54", 0).hex()], {"chunks": 10**9}),
        edge.UpdateOperation.delete_points([point_id("d3", 0).hex()]),
    )
    place.ask("verify", "--sample", "0", code=6)
    assert "5 of them are incomplete" in place.ask("status", "--rebuild").err
    doubtful = json.loads(place.ask("verify", "--sample", "0", "--json").out)["doubtful"]
    assert set(doubtful["first"]) == {f"d{number}" for number in range(50, 55)}
    ended = place.run()
    assert ended.documents == {"read": 60, "indexed": 6, "unchanged": 54}
    assert ended.report["warnings"] == []
    assert ended.report["points"]["deleted"] == 1
    assert place.recorded() == recorded
    assert same_points(before, place.points())
    place.ask("verify", "--sample", "0")


@pytest.mark.slow
def test_a_server(qdrant_server, tmp_path):
    server = {"path": None, "url": qdrant_server.url, "grpc_port": qdrant_server.port}
    place = Workplace(tmp_path, qdrant=server)
    place.write("a.jsonl", documents(12, words=900))
    place.run()
    recorded = place.recorded()
    points = stored(served(qdrant_server, dimension=64))
    lose_state(place)
    place.ask("status", "--rebuild")
    assert place.recorded() == recorded
    assert place.run().documents == {"read": 12, "unchanged": 12}
    assert same_points(points, stored(served(qdrant_server, dimension=64)))


@pytest.mark.slow
def test_a_run_with_work_to_do_notices_that_points_are_gone(place):
    update(place, edge.UpdateOperation.delete_points([point_id("d50", 0).hex()]))
    assert place.run().report["warnings"] == []  # nothing to write: nobody looks
    place.write("c.jsonl", documents(1, start=90))
    ended = place.run()
    [warning] = ended.report["warnings"]
    assert (warning["shard"], warning["kind"]) == ("things", "points_differ")
    assert "`verify`" in warning["detail"]
    place.ask("status", "--rebuild")
    (place.shards / "c.jsonl").touch()
    assert place.run().documents == {"read": 61, "indexed": 1, "unchanged": 60}
    place.write("d.jsonl", documents(1, start=91))
    assert place.run().report["warnings"] == []


@pytest.mark.slow
def test_what_left_meanwhile_is_deleted_under_mirror_alone(place):
    place.configure(source={"sync": "mirror"})
    lose_state(place)
    place.write("a.jsonl", documents(35))
    place.ask("status", "--rebuild")
    place.configure(source={"paths": ["shards", "elsewhere/*.jsonl"], "sync": "mirror"})
    assert place.run(code=3).documents == {"read": 55, "unchanged": 55, "withheld": 5}
    place.configure(source={"sync": "append"})
    assert place.run().documents == {"read": 55, "unchanged": 55, "left": 5}
    place.configure(source={"sync": "mirror"})
    assert place.run().documents == {"read": 55, "unchanged": 55, "deleted": 5}
    assert {payload["document"] for _, payload in place.points().values()} == set(place.recorded())
    assert len(place.recorded()) == 55


def test_the_state_file_from_before_is_moved_aside(place):
    before = place.recorded()
    said = place.ask("status", "--rebuild").err
    [kept] = place.folder.glob("state.sqlite3.bak-" + "[0-9T]" * 15)
    assert f"is kept as {kept.name}" in said
    with closing(sqlite3.connect(kept)) as file:
        assert dict(file.execute("SELECT id, chunks FROM records")) == before
    (place.folder / "state.sqlite3").write_bytes(b"no state file")
    place.ask("status", code=2)
    place.ask("status", "--rebuild")
    assert place.recorded() == before


@pytest.mark.slow
def test_what_cannot_be_made_changes_nothing(place):
    before = {path: path.read_bytes() for path in place.folder.glob("state.sqlite3*")}
    for lock in ("state.sqlite3.lock", "qdrant/things.lock"):
        with Lock.acquire(place.folder / lock):
            place.ask("status", "--rebuild", code=5)
    place.ask("status", "--rebuild", "--set", "encoder.model=hash:32", code=4)
    place.ask("status", "--rebuild", "--set", "qdrant.path=none", "--set", "state=none/s", code=1)
    assert not (place.folder / "none").exists()
    held = place.folder / "state.sqlite3.lock"
    assert {path: path.read_bytes() for path in before if path != held} == {
        path: content for path, content in before.items() if path != held
    }
    assert not list(place.folder.glob("*.bak*"))


def point(document: str, chunk: int, chunks: int, hash_: str) -> Stored:
    payload = {"document": document, "chunk": chunk, "chunks": chunks, "hash": hash_}
    return Stored(point_id(document, chunk), payload)


def test_points_in_any_order(tmp_path: Path):
    points = [
        point(f"d{n}", chunk, n % 5 + 1, f"{n:032x}") for n in range(1, 50) for chunk in range(n % 5 + 1)
    ]
    foreign = [Stored(None, {"document": "d1", "chunk": 0}), Stored(b"x" * 16, {}), point("d2", -1, 1, "")]
    random.Random(1).shuffle(points)
    pages, rebuilt = [[*points[:70], foreign[0]], [], [*foreign[1:], *points[70:]]], Rebuilt()
    found = {
        id_: (key, hash_, chunks) for key, id_, hash_, chunks in gathered(pages, tmp_path / "s", rebuilt)
    }
    assert found == {f"d{n}": (document_key(f"d{n}"), n.to_bytes(16), n % 5 + 1) for n in range(1, 50)}
    assert (rebuilt.documents, rebuilt.incomplete, rebuilt.foreign) == (49, 0, 3)
    assert rebuilt.points == len(points)


@pytest.mark.parametrize("payload", [{}, {"hash": 7, "chunks": "3"}, {"hash": "zz" * 16, "chunks": -1}])
def test_a_payload_that_says_nothing(payload):
    assert version(payload) == (0, NO_HASH)
