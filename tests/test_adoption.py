"""--adopt: what becomes of a collection that another state file wrote."""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from ingestor.encoding.calibration import FILE, Calibration
from ingestor.errors import IdentityMismatchError
from ingestor.running import engine
from ingestor.sink import Target
from ingestor.sink.collection import store_of
from tests.running import DIMENSION, Workplace, documents, failing, run_here
from tests.sinks import embedded, ids_of, make, payload_of, points_of, served, stored, vectors_of, write

pytestmark = pytest.mark.whole

LONG = "chunk.max_tokens=12"
SHORT = "chunk.max_tokens=24"
OTHER_STATE = "state=other.sqlite3"


@pytest.fixture(params=["engine", pytest.param("server", marks=pytest.mark.slow)])
def place(request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workplace:
    """Two sources that share ten documents of thirty."""
    monkeypatch.chdir(tmp_path)
    made = Workplace(tmp_path, chunk={"overlap_tokens": 4})
    if request.param == "server":
        server = request.getfixturevalue("qdrant_server")
        made.configure(
            chunk={"overlap_tokens": 4}, qdrant={"path": None, "url": server.url, "grpc_port": server.port}
        )
    made.write("a.jsonl", documents(20))
    (tmp_path / "other").mkdir()
    (made.shards / "a.jsonl").rename(tmp_path / "other" / "a.jsonl")
    made.write("b.jsonl", documents(20, start=10))
    return made


@pytest.fixture
def target(request, place: Workplace) -> Target:
    if (place.folder / "c.yaml").read_text().count("http://"):
        return served(request.getfixturevalue("qdrant_server"), dimension=DIMENSION)
    return embedded(place.folder / "qdrant", dimension=DIMENSION)


def chunks(target: Target) -> Counter[str]:
    """Points of each document; all of them of one version."""
    found: dict[str, list[dict]] = {}
    for _, payload in stored(target).values():
        found.setdefault(payload["document"], []).append(payload)
    for parts in found.values():
        assert {part["chunks"] for part in parts} == {len(parts)}
        assert len({part["hash"] for part in parts}) == 1
    return Counter({document: len(parts) for document, parts in found.items()})


async def test_a_collection_is_taken_over_whole(place, target):
    theirs = ["source.paths=[other]", LONG, OTHER_STATE]
    await run_here(place, *theirs)
    before = chunks(target)
    assert isinstance(await failing(place, SHORT), IdentityMismatchError)
    assert chunks(target) == before
    report = await run_here(place, SHORT, adopt=True)
    assert report.documents.indexed == 20
    assert [warning.kind for warning in report.warnings] == ["adopted"]
    assert report.warnings[0].detail.startswith("10 documents of the collection are not in the source")
    after = chunks(target)
    assert after == Counter(place.recorded()) + Counter({f"d{n}": before[f"d{n}"] for n in range(10)})
    assert all(after[f"d{n}"] < before[f"d{n}"] for n in range(10, 20))  # what was too much is gone

    again = await run_here(place, SHORT)
    assert (again.documents.unchanged, again.warnings) == (20, [])
    assert (await run_here(place, SHORT, adopt=True)).documents.unchanged == 20  # it is ours already
    mirrored = await run_here(place, SHORT, "source.sync=mirror")
    assert (mirrored.documents.deleted, chunks(target)) == (0, after)
    assert isinstance(await failing(place, *theirs), IdentityMismatchError)


async def test_a_state_file_forgets_what_it_knew_of_another_collection(place, target):
    await run_here(place, "qdrant.collection=elsewhere")
    await run_here(place, "source.paths=[other]", OTHER_STATE)
    report = await run_here(place, adopt=True)
    assert report.documents.indexed == 20
    assert set(chunks(target)) == {f"d{n}" for n in range(30)}


async def test_an_interrupted_adoption_is_completed(place, target):
    await run_here(place, "source.paths=[other]", LONG, OTHER_STATE)
    await run_here(place, SHORT, adopt=True, limit=3)
    report = await run_here(place, SHORT)
    assert (report.documents.unchanged, report.documents.indexed) == (3, 17)
    assert "10 documents" in report.warnings[0].detail
    assert set(chunks(target)) == {f"d{n}" for n in range(30)}


async def test_what_is_not_adopted_is_refused_before_anything_is_made_for_it(place, monkeypatch):
    await run_here(place)

    async def open_engine(*_: object, **__: object) -> None:
        raise AssertionError("no model is needed")

    monkeypatch.setattr(engine, "open_engine", open_engine)
    failure = await failing(place, OTHER_STATE)
    assert isinstance(failure, IdentityMismatchError)
    assert "it was written from another state file" in str(failure)
    assert not (place.folder / "other.sqlite3").exists()


async def test_the_8_bit_model_of_a_collection_is_adopted_with_it(place, target):
    await run_here(place)
    ours = Calibration("sha256:a", (np.arange(5, dtype=np.int32),), np.ones((1, 3), np.float32))
    with store_of(target) as store:
        store.write_identity({**(store.identity() or {}), "calibration": ours.id})
    failure = await failing(place, OTHER_STATE, adopt=True)
    assert isinstance(failure, IdentityMismatchError)
    assert f"the 8-bit model {ours.id}, which is not in models" in str(failure)
    kept = place.folder / "models" / "a"
    kept.mkdir(parents=True)
    (kept / FILE).write_bytes(ours.to_bytes())
    await run_here(place, OTHER_STATE, adopt=True)
    with store_of(target) as store:
        assert (store.identity() or {})["calibration"] == ours.id
    with closing(sqlite3.connect("other.sqlite3")) as file:
        ((stored,),) = file.execute("SELECT value FROM meta WHERE name = 'calibration'")
    assert Calibration.from_bytes(stored).id == ours.id


async def test_there_must_be_something_to_adopt(place, target):
    await run_here(place)
    error = await failing(place, "qdrant.collection=nothing", adopt=True)
    assert isinstance(error, IdentityMismatchError)
    assert "nothing to adopt" in str(error)
    assert (await run_here(place)).documents.unchanged == 20  # and nothing was forgotten


async def test_another_model_is_not_adopted(place, target):
    await run_here(place, "source.paths=[other]", OTHER_STATE)
    await run_here(place, "qdrant.collection=elsewhere", "encoder.model=hash:32")
    error = await failing(place, "encoder.model=hash:32", adopt=True)
    assert isinstance(error, IdentityMismatchError)
    again = await run_here(place, "qdrant.collection=elsewhere", "encoder.model=hash:32")
    assert again.documents.unchanged == 20


async def test_points_of_others_stay(qdrant_server, tmp_path, monkeypatch):
    """A collection of which nothing says who wrote it."""
    monkeypatch.chdir(tmp_path)
    target = served(qdrant_server, dimension=DIMENSION)
    make(target)
    await write(target, points_of(target, 5), vectors_of(5, DIMENSION))
    from qdrant_client import QdrantClient

    client = QdrantClient(
        host="127.0.0.1", grpc_port=qdrant_server.port, prefer_grpc=True, check_compatibility=False
    )
    client.update_collection("things", metadata={"ingestor": None})
    client.close()
    qdrant = {"path": None, "url": qdrant_server.url, "grpc_port": qdrant_server.port}
    place = Workplace(tmp_path, qdrant=qdrant)
    place.write("a.jsonl", documents(10, start=100))
    assert "not written by this program" in str(await failing(place))
    report = await run_here(place, adopt=True)
    assert (report.documents.indexed, report.warnings) == (10, [])
    found = stored(target)
    assert len(found) == 15
    assert found[ids_of(1)[0].tobytes()][1] == payload_of(0)
    assert (await run_here(place)).documents.unchanged == 10
