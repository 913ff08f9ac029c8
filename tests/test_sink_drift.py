"""What a collection that is there has of what the configuration asks for; both where points go."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ingestor.sink import Target, worker
from ingestor.sink.collection import store_of
from ingestor.sink.drift import differences
from tests.servers import QdrantServer
from tests.sinks import IDENTITY, embedded, make, served

ASKED = {
    "hnsw": {"m": 8, "on_disk": False},
    "quantization": {"scalar": {"type": "int8", "quantile": 0.99}},
    "on_disk": True,
    "datatype": "float16",
    "payload_indexes": {"chunk": "integer", "kind": "keyword"},
}
CHANGED = {
    "hnsw": {"m": 32, "on_disk": False, "ef_construct": 200},
    "quantization": {"scalar": {"type": "int8", "quantile": 0.9}},
    "on_disk": False,
    "datatype": "float32",
    "payload_indexes": {"chunk": "keyword", "kind": "keyword", "new": "float"},
}
TOLD = [
    "qdrant.on_disk: true there, false here",
    "qdrant.datatype: float16 there, float32 here",
    "qdrant.hnsw.m: 8 there, 32 here",
    "qdrant.hnsw.ef_construct: 100 there, 200 here",
    "qdrant.quantization.scalar.quantile: 0.99 there, 0.9 here",
    "qdrant.payload_indexes.chunk: integer there, keyword here",
]


@pytest.fixture(params=["server", "engine"])
def plain(request, tmp_path: Path) -> Target:
    if request.param == "engine":
        return embedded(tmp_path)
    return served(request.getfixturevalue("qdrant_server"))


def found(target: Target) -> list[str]:
    with store_of(target) as store:
        there = store.read()
    assert there is not None
    return there.differences(target)


@pytest.mark.parametrize("name", [None, "dense"])
def test_what_is_as_asked_for_is_no_difference(plain: Target, name: str | None) -> None:
    make(target := replace(plain, **ASKED, vector_name=name))
    assert found(target) == []
    assert found(replace(plain, vector_name=name)) == []  # what is left open is the collection's to say


@pytest.mark.parametrize("name", [None, "dense"])
def test_each_difference_is_told_and_nothing_is_changed(plain: Target, name: str | None) -> None:
    made, changed = (replace(plain, **what, vector_name=name) for what in (ASKED, CHANGED))
    make(made)
    assert worker.ensure_collection(changed, 1, IDENTITY, False, False) == TOLD
    assert found(changed) == TOLD
    assert found(made) == []
    with store_of(changed) as store:
        there = store.read()
    assert there is not None
    assert there.indexes == {"document": "keyword", "chunk": "integer", "kind": "keyword", "new": "float"}


@pytest.mark.parametrize(
    "wanted",
    [
        {"product": {"compression": "x4"}},
        {"binary": {"encoding": "one_bit"}},
        {"binary": {"encoding": "two_bits", "query_encoding": "scalar8bits", "always_ram": False}},
    ],
)
def test_quantization_of_another_kind_is_one_difference(plain: Target, wanted: dict) -> None:
    make(target := replace(plain, quantization=wanted))
    assert found(target) == []
    (kind,) = wanted
    scalar = replace(plain, quantization={"scalar": {"type": "int8"}})
    assert found(scalar) == [f"qdrant.quantization: {kind} there, scalar here"]


def test_shards_and_replicas_are_compared(qdrant_server: QdrantServer) -> None:
    asked = {"shard_number": 2, "replication_factor": 2, "write_consistency_factor": 2}
    make(target := served(qdrant_server, **asked))
    assert found(target) == []
    assert found(replace(target, shard_number=4, replication_factor=1)) == [
        "qdrant.shard_number: 2 there, 4 here",
        "qdrant.replication_factor: 2 there, 1 here",
    ]


def test_a_collection_that_is_never_indexed_is_told() -> None:
    target = embedded(Path())
    assert differences({"hnsw.m": 0}, target) == [
        "qdrant.hnsw.m: 0 there, so no index is built; not set here"
    ]
    assert differences({"hnsw.m": 0}, replace(target, hnsw={"m": 0})) == []


def test_a_collection_of_an_earlier_version_tells_what_it_can(tmp_path: Path) -> None:
    from ingestor.sink.folder import folder_of, read_manifest, write_manifest

    make(target := embedded(tmp_path))
    manifest = read_manifest(folder_of(target))
    assert manifest is not None
    del manifest["settings"]
    write_manifest(folder_of(target), manifest)
    assert found(replace(target, hnsw={"m": 16})) == []
