"""Fixtures that tests of several modules share."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.servers import QdrantServer


@pytest.fixture(scope="session")
def shared_qdrant_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[QdrantServer]:
    """One test server for the whole session, for it takes a second to start; stopped at the end."""
    with QdrantServer(tmp_path_factory.mktemp("qdrant") / "server") as server:
        yield server


@pytest.fixture
def qdrant_server(shared_qdrant_server: QdrantServer) -> QdrantServer:
    """A test server without collections or faults."""
    shared_qdrant_server.reset()
    return shared_qdrant_server


# The pool that compiles for torch outlives the test that it was made for, which would pass for a leak.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

settings.register_profile("ci", derandomize=True)  # finds what it found before, and nothing by luck
if os.environ.get("CI"):
    settings.load_profile("ci")


def pytest_addoption(parser):
    parser.addoption("--faults", type=int, default=4, help="runs in the slow test of random faults")
    parser.addoption("--kills", type=int, default=4, help="moments at which a run is killed in the slow test")
    parser.addoption("--pairs", type=int, default=3, help="runs started two by two in the slow test of locks")
    parser.addoption("--screenshots", metavar="DIR", help="where to keep pictures of the page about a run")
    parser.addoption("--steps", type=int, default=8, help="edits and runs in the slow test of histories")
    parser.addoption("--page", metavar="FILE", help="look at this page in place of one made for the test")
