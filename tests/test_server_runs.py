"""Whole runs, in processes of their own, into a server that does not do as it is asked."""

from __future__ import annotations

import os
import signal

import pytest

from tests.disturbed import kept_running
from tests.running import DIMENSION, Workplace, documents, eventually, workers
from tests.servers import QdrantServer
from tests.sinks import served, stored

COUNT = 800

pytestmark = pytest.mark.slow


@pytest.fixture
def place(tmp_path, qdrant_server: QdrantServer) -> Workplace:
    """Documents of a point each."""
    server = {"path": None, "url": qdrant_server.url, "grpc_port": qdrant_server.port}
    made = Workplace(tmp_path, qdrant=server)
    made.write("a.jsonl", documents(COUNT))
    return made


def documents_in(server: QdrantServer) -> list[str]:
    """Of each point that is stored."""
    found = stored(served(server, dimension=DIMENSION))
    return [payload["document"] for _, payload in found.values()]


def test_what_is_waited_for_is_shown_and_reported(place, qdrant_server):
    qdrant_server.fault(code="RESOURCE_EXHAUSTED", metadata={"retry-after": "12"})  # a line comes every 10 s
    ended = place.end(place.start("run", "--config", "c.yaml", "--report", "r.json"))
    assert ended.code == 0, ended.err
    lines = ended.err.splitlines()
    assert any("documents/s" in line and "waiting 12 s: the server limits" in line for line in lines)
    assert any("sink waits" in line and "rate_limited" in line for line in lines)
    [warning] = ended.report["warnings"]
    assert (warning["shard"], warning["kind"]) == ("things", "rate_limited")
    assert "waited 12." in warning["detail"]
    assert warning["detail"].endswith("(times: 1)")
    assert len(documents_in(qdrant_server)) == COUNT


def test_a_point_that_is_refused_is_named(place, qdrant_server):
    qdrant_server.fault(code="INVALID_ARGUMENT", document="d7", detail="Wrong input: not this one")
    ended = place.run(code=3)
    assert ended.documents == {"read": COUNT, "indexed": COUNT - 1, "failed": 1}
    assert ended.report["rejected_by_kind"] == {"refused": 1}
    [refused] = ended.report["refused"]
    assert (refused["shard"], refused["document"], refused["kind"]) == ("a.jsonl", "d7", "refused")
    assert "not this one" in refused["detail"]
    assert sorted(documents_in(qdrant_server)) == sorted({f"d{number}" for number in range(COUNT)} - {"d7"})


def test_a_server_that_is_started_again_costs_nothing_but_time(place, qdrant_server):
    qdrant_server.fault(exit=True, skip=1)
    with kept_running(qdrant_server):
        ended = place.run()
    assert ended.documents == {"read": COUNT, "indexed": COUNT}
    assert {warning["kind"] for warning in ended.report["warnings"]} == {"server_unavailable"}
    assert len(documents_in(qdrant_server)) == COUNT


def test_a_collection_that_is_dropped_under_a_run(place, qdrant_server):
    qdrant_server.fault(delay=1.0, skip=1)
    process = place.start_run()
    eventually(lambda: qdrant_server.calls() >= 2)
    qdrant_server.drop("things")
    ended = place.end(process)
    assert ended.code == 1
    [error] = ended.errors
    assert "is not there any more" in error
    assert "--recreate" in error
    assert qdrant_server.calls() < COUNT / 256 + 3  # nothing was tried again


def test_a_sink_that_is_killed_in_the_middle_of_a_request(place, qdrant_server):
    """The server may well have written what nobody was told of."""
    qdrant_server.fault(delay=2.0, skip=1)
    process = place.start_run()
    eventually(lambda: qdrant_server.calls() >= 2)
    os.kill(workers(process.pid)["sink"], signal.SIGKILL)
    ended = place.end(process)
    assert ended.code == 1
    [error] = ended.errors
    assert "the process that writes to it was killed (SIGKILL)" in error
    assert "run again to complete the work" in error
    qdrant_server.mend()
    before = len(place.recorded())
    assert before < COUNT
    again = place.run()
    assert again.documents.get("unchanged", 0) == before
    assert len(place.recorded()) == len(documents_in(qdrant_server)) == COUNT
