"""The life of a collection on a real server: `QDRANT_URL=http://localhost:6333 make qdrant`.

QDRANT_API_KEY and INGESTOR_QDRANT__GRPC_PORT are heeded. What is made there has names of its own, and goes.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from ingestor import cli
from ingestor.config.settings import Settings, load
from ingestor.running import wiring
from ingestor.running.generations import own
from ingestor.sink import Target
from ingestor.sink.collection import store_of
from ingestor.sink.server_index import ServerIndex
from ingestor.watching.report import Report
from tests.querying import connect, queried
from tests.running import Workplace, documents, run_here

pytestmark = [
    pytest.mark.qdrant,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore:Api key is used with an insecure connection"),
]

COUNT = 2000
OTHER = "source.metadata_fields=[]"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workplace]:
    if not (url := os.environ.get("QDRANT_URL")):
        pytest.skip("QDRANT_URL is not set")
    monkeypatch.chdir(tmp_path)
    name = f"ingestor-test-{uuid.uuid4().hex[:8]}"
    port = int(os.environ.get("INGESTOR_QDRANT__GRPC_PORT", "6334"))
    qdrant = {"path": None, "url": url, "grpc_port": port, "collection": name, "hnsw": {"m": 24}}
    made = Workplace(tmp_path, qdrant=qdrant | {"api_key": os.environ.get("QDRANT_API_KEY")})
    made.write("a.jsonl", documents(COUNT))
    yield made
    client = connect(target_of(settings()))
    for one in client.get_collections().collections:
        if one.name.startswith(name):
            client.delete_collection(one.name)
    client.close()


def settings(*overrides: str) -> Settings:
    return own(load(Path("c.yaml"), overrides, environ={}))


def target_of(found: Settings) -> Target:
    return wiring.target_of(found, wiring.spec_of(found))


def told(report: Report) -> list[str]:
    """What a run warned of, but for a key that goes over the network in clear: the place is no matter."""
    return [warning.detail for warning in report.warnings if warning.kind != "key_in_clear"]


def test_a_load_with_its_index_put_off(place: Workplace) -> None:
    report = asyncio.run(run_here(place, "qdrant.bulk=on"))
    assert (report.status, told(report)) == ("complete", [])
    target = target_of(settings())
    with ServerIndex(target) as index:
        assert (index.links(), index.count(), index.condition().settled) == (24, COUNT, True)
    with store_of(target) as store:
        there = store.read()
    assert there is not None
    assert there.differences(target) == []
    again = asyncio.run(run_here(place, "qdrant.hnsw.m=32", "qdrant.on_disk=true"))
    drift = [detail.partition(": ") for detail in told(again)]
    assert [name for name, _, _ in drift] == ["qdrant.on_disk", "qdrant.hnsw.m"]
    assert drift[1][2] == "24 there, 32 here"


def test_switching_under_readers(place: Workplace, capsys: pytest.CaptureFixture[str]) -> None:
    alias = f"{place.folder.name}-{uuid.uuid4().hex[:8]}"
    behind = f"qdrant.alias={alias}"

    def ask(command: str, *overrides: str) -> int:
        sets = [part for one in (behind, *overrides) for part in ("--set", one)]
        return cli.execute([command, "--config", "c.yaml", *sets])

    first, second = settings(behind), settings(behind, OTHER)
    asyncio.run(run_here(place, behind))
    assert ask("promote") == 0
    asyncio.run(run_here(place, behind, OTHER))
    with queried(target_of(first), alias) as (found, failed):
        for _ in range(5):
            assert ask("promote", OTHER) == 0
            assert ask("rollback") == 0
    assert failed == []
    assert set(found) == {"with kind", "without"}
    assert ask("promote", OTHER) == 0
    said = capsys.readouterr().out
    assert f"alias {alias}: {first.qdrant.collection} -> {second.qdrant.collection}" in said
