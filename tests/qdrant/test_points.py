"""Settings and points on a real server: what it says of a collection, and what it gives back."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from qdrant_client import grpc as qdrant

from ingestor.errors import ConfigError
from ingestor.sink import Target, open_reader
from ingestor.sink.collection import store_of
from ingestor.sink.connection import Connection
from ingestor.sink.server import ServerSink
from tests.sinks import IDENTITY, embedded, ids_of, make, payload_of, points_of, stored, vectors_of

pytestmark = [pytest.mark.qdrant, pytest.mark.timeout(300)]

COUNT = 600
ASKED: dict[str, Any] = {
    "hnsw": {"m": 8, "ef_construct": 64, "full_scan_threshold": 5000, "on_disk": True},
    "on_disk": True,
    "datatype": "float16",
    "shard_number": 2,
    "replication_factor": 1,
    "write_consistency_factor": 1,
    "payload_indexes": {"chunk": "integer", "kind": "keyword", "score": "float", "when": "datetime"},
}


@pytest.fixture
def target() -> Iterator[Target]:
    """A collection that is not there yet; it goes, if it is made."""
    if not (url := os.environ.get("QDRANT_URL")):
        pytest.skip("QDRANT_URL is not set")
    target = replace(
        embedded(Path(), collection=f"ingestor-test-{uuid.uuid4().hex[:8]}"),
        url=url,
        path=None,
        grpc_port=int(os.environ.get("INGESTOR_QDRANT__GRPC_PORT", "6334")),
        api_key=os.environ.get("QDRANT_API_KEY"),
    )
    yield target
    with store_of(target) as store:
        store.drop()


def differences(target: Target) -> list[str]:
    with store_of(target) as store:
        there = store.read()
    assert there is not None
    return there.differences(target)


@pytest.mark.parametrize("name", [None, "dense"])
@pytest.mark.parametrize(
    "quantization",
    [
        {"scalar": {"type": "int8", "quantile": 0.99, "always_ram": True}},
        {"product": {"compression": "x4", "always_ram": False}},
        {"binary": {"always_ram": True}},
    ],
    ids=["scalar", "product", "binary"],
)
def test_a_collection_is_what_it_was_asked_to_be(
    target: Target, name: str | None, quantization: dict
) -> None:
    make(asked := replace(target, **ASKED, quantization=quantization, vector_name=name))
    assert differences(asked) == []
    assert differences(replace(target, vector_name=name)) == []
    assert differences(replace(asked, datatype="float32")) == ["qdrant.datatype: float16 there, float32 here"]
    make(asked)  # finds its own identity again


@pytest.mark.parametrize("name", [None, "dense"])
def test_points_come_back_as_they_were_written(target: Target, name: str | None) -> None:
    make(target := replace(target, vector_name=name))
    vectors, ids = vectors_of(COUNT), ids_of(COUNT)
    with closing(ServerSink(target)) as sink:
        assert sink.upsert(vectors, points_of(target, COUNT)) == []
        sink.delete(ids[:100])
        assert sink.count() == COUNT - 100
    found = stored(target)
    assert found.keys() == {row.tobytes() for row in ids[100:]}
    for number in range(100, COUNT):
        vector, payload = found[ids[number].tobytes()]
        assert payload == payload_of(number)
        np.testing.assert_allclose(vector, vectors[number], atol=1e-5)
    with closing(open_reader(target)) as reader:
        assert reader.identity() == IDENTITY
        hits = reader.search(vectors[200:240], 2, exact=True)
        assert [row[0].document for row in hits] == [f"d{number}" for number in range(200, 240)]
        [only] = reader.search(vectors[:1], 5, filter={"document": "d399"})
        assert [hit.text for hit in only] == ["Text über 399"]
        [one] = reader.retrieve([ids[0].tobytes(), ids[100].tobytes()], ["document"])
        assert (one.id, one.payload, one.vector) == (ids[100].tobytes(), {"document": "d100"}, None)


def test_the_limits_of_strict_mode_are_kept_to(target: Target) -> None:
    make(target)
    strict = qdrant.StrictModeConfig(enabled=True, upsert_max_batchsize=50)
    with closing(Connection(target)) as connection:
        request = qdrant.UpdateCollection(collection_name=target.collection, strict_mode_config=strict)
        connection.ask(connection.collections.Update, request)
    with closing(ServerSink(target)) as sink:
        assert sink.upsert(vectors_of(COUNT), points_of(target, COUNT)) == []
        assert sink.count() == COUNT


def test_another_key_is_refused(target: Target) -> None:
    if target.api_key is None:
        pytest.skip("the server asks for no key")
    with pytest.raises(ConfigError, match="the server refuses the API key"):
        make(replace(target, api_key="another"))
