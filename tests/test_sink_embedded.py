"""The embedded engine through its sink processes, and what a kill leaves of it."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest

from ingestor.buffers import BufferPool
from ingestor.errors import ConfigError, IdentityMismatchError, LockedError, SinkError, WorkerDiedError
from ingestor.records import UpsertRequest
from ingestor.sink import REQUEST_BYTES, check_target, open_reader
from ingestor.sink.folder import directory_of, read_manifest
from ingestor.sink.pool import SinkPool
from ingestor.sink.upsert import upsert
from tests.sinks import (
    IDENTITY,
    embedded,
    ids_of,
    make,
    payload_of,
    points_of,
    refused,
    sink_pool,
    stored,
    vectors_of,
    write,
)

pytestmark = pytest.mark.whole


@pytest.mark.parametrize(("processes", "name"), [(1, None), (2, "dense")])
async def test_what_is_written_is_read_back(tmp_path: Path, processes: int, name: str | None) -> None:
    target = embedded(tmp_path, vector_name=name)
    vectors = vectors_of(300)
    assert await write(target, points_of(target, 300), vectors, processes=processes) == ()
    found = stored(target)
    for number, point in enumerate(ids_of(300)):
        vector, payload = found[point.tobytes()]
        assert payload == payload_of(number)
        np.testing.assert_allclose(vector, vectors[number], atol=1e-6)
    assert len(found) == 300


async def test_search_merges_directories_and_filters(tmp_path: Path) -> None:
    target = embedded(tmp_path)
    vectors = vectors_of(300)
    await write(target, points_of(target, 300), vectors, processes=2)
    reader = open_reader(target)
    try:
        assert reader.identity() == IDENTITY
        hits = reader.search(vectors[5:7], 4, exact=True)
        best = np.argsort(-(vectors[5:7] @ vectors.T), axis=1)[:, :4]
        assert [[hit.document for hit in row] for row in hits] == [[f"d{n}" for n in row] for row in best]
        assert hits[0][0].score == pytest.approx(1.0, abs=1e-5)
        assert (hits[0][0].text, hits[0][0].chunk) == ("Text über 5", 2)
        assert set(hits[0][0].payload) == {"chunks", "hash", "score", "big", "tags"}
        (only,) = reader.search(vectors[:1], 4, filter={"document": "d9", "chunk": 0})
        assert [hit.document for hit in only] == ["d9"]
    finally:
        reader.close()


async def test_refused_rows_are_named_and_not_written(tmp_path: Path) -> None:
    target = embedded(tmp_path)
    buffers = BufferPool.create("refused", slots=1, rows=20, dimension=8)
    pool = await SinkPool.open(target, identity=IDENTITY, processes=2)
    try:
        await pool.attach(buffers.layout)
        slot = await buffers.acquire()
        slot.vectors[:] = vectors_of(20)
        slot.vectors[[3, 11]] = np.nan
        applied = await pool.upsert(UpsertRequest(slot.index, points_of(target, 20), refused(3, 11)))
        assert [(row, kind) for row, kind, _ in applied.failures] == [(3, "non_finite"), (11, "non_finite")]
        assert await pool.count() == 18
        await pool.delete(ids_of(5))
        assert await pool.count() == 14
    finally:
        await pool.close()
        buffers.close()


async def test_a_point_larger_than_a_request_is_refused_alone(tmp_path: Path) -> None:
    target = embedded(tmp_path)
    payloads = [payload_of(number) for number in range(5)]
    payloads[2]["text"] = "x" * REQUEST_BYTES
    failures = await write(target, points_of(target, 5, payloads), vectors_of(5))
    assert [(row, kind) for row, kind, _ in failures] == [(2, "payload_too_large")]
    assert len(stored(target)) == 4


async def test_the_stage_keeps_order_and_releases_every_slot(tmp_path: Path) -> None:
    target = embedded(tmp_path)
    buffers = BufferPool.create("stage", slots=2, rows=30, dimension=8)
    pool = await SinkPool.open(target, identity=IDENTITY, processes=1)
    points, vectors = points_of(target, 300), vectors_of(300)

    async def requests():
        for start in range(0, 300, 30):
            slot = await buffers.acquire()  # waits for ever if the stage does not release
            slot.vectors[:] = vectors[start : start + 30]
            yield UpsertRequest(slot.index, points.slice(start, start + 30), refused())

    try:
        await pool.attach(buffers.layout)
        answers = [applied async for applied in upsert(requests(), sinks=pool, buffers=buffers)]
        assert [applied.documents[0] for applied in answers] == list(range(0, 300, 30))
        assert await pool.count() == 300
        for _ in range(2):
            await buffers.acquire()
    finally:
        await pool.close()
        buffers.close()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"vector": {"model": "other"}}, "model: 'hash:8' there, 'other' here"),
        ({"state": "state-2"}, "another state file"),
    ],
)
async def test_another_identity_is_refused_and_nothing_written(
    tmp_path: Path, change: dict, says: str
) -> None:
    target = embedded(tmp_path)
    await write(target, points_of(target, 3), vectors_of(3))
    before = read_manifest(tmp_path / "things")
    with pytest.raises(IdentityMismatchError, match=says):
        make(target, identity=IDENTITY | change)
    assert read_manifest(tmp_path / "things") == before
    make(target, identity=IDENTITY | change, recreate=True)
    assert stored(target) == {}


async def test_another_record_identity_is_taken_over_and_adopt_takes_a_state(tmp_path: Path) -> None:
    target = embedded(tmp_path)
    await write(target, points_of(target, 3), vectors_of(3))
    changed = IDENTITY | {"record": {"fields": ["title"]}}
    make(target, identity=changed)
    assert (read_manifest(tmp_path / "things") or {}).get("identity") == changed
    make(target, identity=changed | {"state": "state-2"}, adopt=True)
    assert len(stored(target)) == 3


@pytest.mark.parametrize("change", [{"dimension": 9}, {"distance": "Dot"}, {"vector_name": "dense"}])
def test_another_vector_is_refused(tmp_path: Path, change: dict) -> None:
    target = embedded(tmp_path)
    make(target)
    with pytest.raises(IdentityMismatchError, match="nothing was written"):
        make(replace(target, **change))


async def test_a_collection_keeps_its_number_of_directories(tmp_path: Path) -> None:
    target = embedded(tmp_path)
    await write(target, points_of(target, 50), vectors_of(50), processes=2)
    await write(target, points_of(target, 50), vectors_of(50), processes=1)
    assert len(stored(target)) == 50
    counts = np.bincount(directory_of(ids_of(300), 3))
    assert len(counts) == 3
    assert counts.min() > 60


async def test_a_folder_that_another_process_holds_is_locked(tmp_path: Path) -> None:
    target = embedded(tmp_path)
    async with sink_pool(target):
        with pytest.raises(LockedError, match="another process"):
            open_reader(target)
        for recreate in (False, True):
            with pytest.raises(LockedError, match="another process"):
                make(target, recreate=recreate)
    assert stored(target) == {}


async def test_what_was_applied_outlives_a_killed_process(tmp_path: Path) -> None:
    target = embedded(tmp_path)
    buffers = BufferPool.create("killed", slots=1, rows=100, dimension=8)
    pool = await SinkPool.open(target, identity=IDENTITY, processes=1)
    try:
        await pool.attach(buffers.layout)
        slot = await buffers.acquire()
        slot.vectors[:] = vectors_of(100)
        await pool.upsert(UpsertRequest(slot.index, points_of(target, 100), refused()))
        pool.kill()
        with pytest.raises(WorkerDiedError, match="SIGKILL"):
            await pool.flush()
        with pytest.raises(WorkerDiedError, match="SIGKILL"):
            await pool.count()
    finally:
        await pool.close()
        buffers.close()
    assert len(stored(target)) == 100


async def test_what_a_kill_leaves_of_making_and_optimizing_is_swept(tmp_path: Path) -> None:
    target = embedded(tmp_path)
    for suffix in ("new", "old"):
        (tmp_path / f".things.{suffix}" / "0").mkdir(parents=True)
    await write(target, points_of(target, 10), vectors_of(10))
    (tmp_path / "things" / "0" / "temp_segments" / "segment_builder_x").mkdir(parents=True)
    async with sink_pool(target) as pool:
        await pool.optimize()
        assert await pool.count() == 10
    assert sorted(os.listdir(tmp_path)) == ["things"]
    assert not (tmp_path / "things" / "0" / "temp_segments").exists()


def test_a_folder_of_others_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "things").mkdir()
    (tmp_path / "things" / "thesis.txt").write_text("important")
    for recreate in (False, True):
        with pytest.raises(SinkError, match="not empty"):
            make(embedded(tmp_path), recreate=recreate)
    assert os.listdir(tmp_path / "things") == ["thesis.txt"]


def test_a_missing_directory_of_the_engine_is_told(tmp_path: Path) -> None:
    target = embedded(tmp_path)
    make(target)
    shutil.rmtree(tmp_path / "things" / "0")
    with pytest.raises(SinkError, match="missing"):
        make(target)


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"collection": "a/b"}, ConfigError, "qdrant.collection"),
        ({"datatype": "int4"}, ConfigError, "qdrant.datatype: 'int4'"),
        ({"payload_indexes": {"year": "number"}}, ConfigError, "qdrant.payload_indexes.year: 'number'"),
        ({"hnsw": {"n": 1}}, ConfigError, "qdrant.hnsw"),
        ({"quantization": {"half": {}}}, ConfigError, "qdrant.quantization"),
        ({"path": "/proc/nothing"}, SinkError, "/proc/nothing"),
    ],
)
def test_unusable_settings_are_named(tmp_path: Path, change: dict, error: type, says: str) -> None:
    with pytest.raises(error, match=says):
        make(replace(embedded(tmp_path), **change))
    assert os.listdir(tmp_path) == []


def test_settings_are_kept(tmp_path: Path) -> None:
    target = embedded(
        tmp_path,
        datatype="float16",
        on_disk=True,
        hnsw={"m": 8},
        quantization={"scalar": {"type": "int8", "quantile": 0.99}},
        payload_indexes={"chunk": "integer"},
    )
    make(target)
    config = (tmp_path / "things" / "0" / "edge_config.json").read_text().lower()
    for word in ("float16", '"m":8', "quantile", "cold"):
        assert word in config


def test_check_says_what_is_there(tmp_path: Path) -> None:
    assert "will be made" in check_target(embedded(tmp_path))


def is_spawned(child: psutil.Process) -> bool:
    """Whether it is a worker; what an earlier test has left may end at any moment."""
    try:
        return "spawn_main" in " ".join(child.cmdline())
    except psutil.NoSuchProcess:  # a zombie, too
        return False


async def test_no_process_is_left(tmp_path: Path) -> None:
    async with sink_pool(embedded(tmp_path), processes=2) as pool:
        assert pool.processes == 2
        pids = [child.pid for child in psutil.Process().children() if is_spawned(child)]
        assert len(pids) >= 2
    assert not any(psutil.pid_exists(pid) for pid in pids)
