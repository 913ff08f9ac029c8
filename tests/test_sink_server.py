"""The server sink against a test server that speaks gRPC, with faults."""

from __future__ import annotations

import http.server
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ingestor.errors import ConfigError, IdentityMismatchError, NothingThereError, SinkError
from ingestor.sink import POINTS_PER_REQUEST, Target, check_target, open_reader, requests
from ingestor.sink.server import ServerSink
from tests.servers import QdrantServer
from tests.sinks import (
    IDENTITY,
    embedded,
    ids_of,
    make,
    payload_of,
    points_of,
    served,
    sink_pool,
    stored,
    vectors_of,
    write,
)


@pytest.fixture
def target(qdrant_server: QdrantServer) -> Target:
    """A collection that is there, and empty."""
    target = served(qdrant_server)
    make(target)
    return target


async def test_both_sinks_store_the_same(qdrant_server: QdrantServer, tmp_path: Path) -> None:
    vectors = vectors_of(300)
    here, there = embedded(tmp_path / "engine"), served(qdrant_server)
    for target in (here, there):
        assert await write(target, points_of(target, 300), vectors) == ()
    of_engine, of_server = stored(here), stored(there)
    assert of_engine.keys() == of_server.keys()
    for point, (vector, payload) in of_engine.items():
        assert of_server[point][1] == payload
        np.testing.assert_allclose(of_server[point][0], vector, atol=1e-6)
    assert of_server[ids_of(1)[0].tobytes()][1] == payload_of(0)


@pytest.mark.whole
async def test_the_pool_counts_deletes_and_reads_back(qdrant_server: QdrantServer) -> None:
    target = served(qdrant_server, vector_name="dense")
    vectors = vectors_of(600)
    assert await write(target, points_of(target, 600), vectors) == ()
    async with sink_pool(target, processes=2) as pool:
        await pool.delete(ids_of(50))
        await pool.flush()
        assert await pool.count() == 550
    reader = open_reader(target)
    try:
        assert reader.identity() == IDENTITY
        assert reader.count() == 550
        hits = reader.search(vectors[100:140], 2, exact=True)
        assert [row[0].document for row in hits] == [f"d{number}" for number in range(100, 140)]
        (only,) = reader.search(vectors[:1], 5, filter={"document": "d99", "chunk": 0})
        assert [(hit.document, hit.text) for hit in only] == [("d99", "Text über 99")]
    finally:
        reader.close()
    assert "holds 550 points" in check_target(target)


def test_requests_are_as_few_and_as_even_as_may_be(target: Target, qdrant_server: QdrantServer) -> None:
    count = 3 * POINTS_PER_REQUEST + 1
    points, sink = points_of(target, count), ServerSink(target)
    lengths = [stop - start for start, stop in requests(points, 32)]
    assert lengths == [193, 193, 193, 190]
    assert sink.upsert(vectors_of(count), points) == []
    assert sink.count() == count
    sink.close()
    assert qdrant_server.calls() == 4


def test_the_collection_is_made_as_asked(qdrant_server: QdrantServer) -> None:
    target = served(
        qdrant_server,
        hnsw={"m": 8},
        quantization={"scalar": {"type": "int8"}},
        payload_indexes={"chunk": "integer"},
        on_disk=True,
        datatype="float16",
    )
    make(target)
    from ingestor.sink.server_store import ServerStore

    with ServerStore(target) as store:
        found = store.read()
    assert found is not None
    assert found.indexes == {"document": "keyword", "chunk": "integer"}
    assert found.identity == IDENTITY


def test_identity_and_schema_are_checked(target: Target) -> None:
    sink = ServerSink(target)
    sink.upsert(vectors_of(3), points_of(target, 3))
    sink.close()
    for identity, says in (
        (IDENTITY | {"vector": {"model": "other"}}, "model: 'hash:8' there, 'other' here"),
        (IDENTITY | {"state": "state-2"}, "another state file"),
    ):
        with pytest.raises(IdentityMismatchError, match=says):
            make(target, identity=identity)
    for change in ({"dimension": 9}, {"distance": "Dot"}, {"vector_name": "dense"}):
        with pytest.raises(IdentityMismatchError, match="nothing was written"):
            make(replace(target, **change))
    make(target, identity=IDENTITY | {"state": "state-2", "record": {}}, adopt=True)
    reader = open_reader(target)
    assert reader.identity() == IDENTITY | {"state": "state-2", "record": {}}
    assert reader.count() == 3
    reader.close()
    make(target, identity=IDENTITY | {"vector": {"model": "other"}}, recreate=True)
    assert stored(target) == {}


def test_a_collection_of_others_is_not_ours(target: Target) -> None:
    from qdrant_client import QdrantClient, models

    client = QdrantClient(
        host="127.0.0.1", grpc_port=target.grpc_port, prefer_grpc=True, check_compatibility=False
    )
    vector = models.VectorParams(size=8, distance=models.Distance.COSINE)
    client.create_collection("theirs", vectors_config=vector)
    theirs = replace(target, collection="theirs")
    make(theirs)  # empty: taken
    client.delete_collection("theirs")
    client.create_collection("theirs", vectors_config=vector)
    client.upsert("theirs", [models.PointStruct(id=str(NUMBER), vector=[1.0] * 8)])
    with pytest.raises(IdentityMismatchError, match="not written by this program"):
        make(theirs)
    make(theirs, adopt=True)
    client.close()


NUMBER = "00000000-0000-0000-0000-000000000001"


def test_an_unfinished_making_is_completed(target: Target, qdrant_server: QdrantServer) -> None:
    bare = replace(target, collection="bare")
    qdrant_server.fault("Points/CreateFieldIndex", code="NOT_FOUND")
    with pytest.raises(SinkError, match="not there any more"):
        make(bare)
    make(bare)
    assert qdrant_server.calls("Points/CreateFieldIndex") == 3


def test_a_lost_answer_to_the_making_does_no_harm(qdrant_server: QdrantServer) -> None:
    qdrant_server.fault("Collections/Create", code="UNAVAILABLE", after=True)
    make(served(qdrant_server))
    assert qdrant_server.calls("Collections/Create") == 2


def test_the_api_key_is_sent_over_http_and_never_shown(tmp_path: Path) -> None:
    with QdrantServer(tmp_path / "server", "--api-key", "sesame") as server:
        target = served(server, api_key="sesame")
        make(target)
        assert "sesame" not in repr(target) + str(target)
        for key in (None, "wrong-key"):
            with pytest.raises(ConfigError, match="refuses the API key") as caught:
                make(replace(target, api_key=key))
            assert "wrong-key" not in str(caught.value)


def test_an_old_server_is_refused(tmp_path: Path) -> None:
    with (
        QdrantServer(tmp_path / "server", "--version", "1.15.4") as server,
        pytest.raises(SinkError, match="or newer"),
    ):
        make(served(server))


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"grpc_port": 1}, SinkError, r"127.0.0.1:6333 \(gRPC port 1\): no Qdrant server can be reached"),
        ({"url": "https://127.0.0.1:6333"}, ConfigError, "no TLS there"),
        ({"url": "http://me:secret@127.0.0.1"}, ConfigError, "leave user and password out"),
        ({"url": "ftp://127.0.0.1"}, ConfigError, "qdrant.url"),
        ({"url": "http://127.0.0.1:6333/sub"}, ConfigError, "without a path"),
        (
            {"url": "https://127.0.0.1", "ca_file": "/nowhere.pem"},
            ConfigError,
            "qdrant.ca_file: /nowhere.pem",
        ),
        ({"payload_indexes": {"year": "number"}}, ConfigError, "qdrant.payload_indexes.year"),
        ({"hnsw": {"n": 1}}, ConfigError, "qdrant.hnsw"),
        ({"quantization": {"half": {}}}, ConfigError, "qdrant.quantization"),
        ({"datatype": "int4"}, ConfigError, "qdrant.datatype"),
    ],
)
@pytest.mark.whole
def test_unusable_settings_are_named(
    qdrant_server: QdrantServer, change: dict, error: type, says: str
) -> None:
    with pytest.raises(error, match=says):
        make(served(qdrant_server, **change))
    assert qdrant_server.calls("Collections/Create") == 0


def test_a_port_that_speaks_http_is_told(qdrant_server: QdrantServer) -> None:
    with http.server.HTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler) as web:
        serving = threading.Thread(target=web.serve_forever)
        serving.start()
        with pytest.raises(ConfigError, match="does not speak gRPC"):
            make(served(qdrant_server, grpc_port=web.server_port))
        web.shutdown()
        serving.join()


def test_reading_a_collection_that_is_not_there(qdrant_server: QdrantServer) -> None:
    with pytest.raises(NothingThereError, match="none yet"):
        open_reader(served(qdrant_server))
    assert "will be made" in check_target(served(qdrant_server))
