"""verify: collections that are what their state file says, and collections that somebody has been at."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import qdrant_edge as edge

from ingestor import cli
from ingestor.commands.comparing import Comparison, cosine_of
from ingestor.commands.verify import findings
from ingestor.lock import Lock
from ingestor.sink import IndexState, open_reader
from ingestor.sink.engine import load_shard
from ingestor.state.identity import point_id
from tests.running import DIMENSION, Workplace, documents
from tests.sinks import embedded

pytestmark = pytest.mark.whole


@pytest.fixture(scope="module")
def well(tmp_path_factory) -> Workplace:
    """100 documents, 60 of them of several chunks: some pages of points."""
    made = Workplace(tmp_path_factory.mktemp("well"))
    made.write("a.jsonl", documents(40))
    made.write("b.jsonl", documents(60, start=40, words=900))
    made.run()
    return made


class Copy:
    """A copy of a collection and its state, to be spoilt and looked at."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._capsys = capsys

    def ask(self, *arguments: str) -> tuple[int, str, str]:
        code = cli.execute(["verify", "--config", "c.yaml", *arguments])
        said = self._capsys.readouterr()
        return code, said.out, said.err

    def compare(self, *arguments: str) -> tuple[int, dict[str, Any]]:
        code, out, _ = self.ask("--json", *arguments)
        return code, json.loads(out)

    def update(self, *operations: edge.UpdateOperation) -> None:
        with closing(load_shard(self.folder / "qdrant" / "things" / "0")) as shard:
            for operation in operations:
                shard.update(operation)

    def recorded(self) -> dict[str, int]:
        with closing(sqlite3.connect(self.folder / "state.sqlite3")) as file:
            return dict(file.execute("SELECT id, chunks FROM records WHERE chunks > 0").fetchall())


@pytest.fixture
def copy(well, tmp_path, monkeypatch, capsys) -> Copy:
    shutil.copytree(well.folder, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    return Copy(tmp_path / "copy", capsys)


def ids(document: str, *chunks: int) -> list[str]:
    return [point_id(document, chunk).hex() for chunk in chunks]


def point(document: str, chunk: int, **payload: Any) -> edge.Point:
    vector = np.ones(DIMENSION, np.float32)
    named = {"document": document, "chunk": chunk, "chunks": 1, "hash": "00" * 16, "text": "x"}
    return edge.Point(point_id(document, chunk).hex(), vector.data, named | payload)


def test_a_collection_that_is_well(copy):
    points = sum(copy.recorded().values())
    code, found = copy.compare()
    assert (code, found["same"]) == (0, True)
    assert found["points"] == found["scanned"] == found["expected"] == points > 256
    assert found["documents"] == 100
    assert (found["sampled"], found["disturbed"]) == (100, False)
    assert found["cosine"] == pytest.approx(1, abs=1e-5)
    assert copy.compare("--sample", str(points))[1]["sampled"] == points
    code, out, err = copy.ask()
    assert (code, err) == (0, "")
    assert {line.split()[0] for line in out.splitlines()} == {"ok"}


def test_what_is_missing_is_counted_and_named(copy):
    chunks = copy.recorded()["d41"]
    copy.update(
        edge.UpdateOperation.delete_points([*ids("d7", 0), *ids("d40", 0, 2), *ids("d41", *range(chunks))])
    )
    code, found = copy.compare("--sample", "0")
    assert (code, found["same"]) == (6, False)
    assert found["missing"]["points"] == 3 + chunks
    assert found["missing_documents"] == 3
    assert set(found["missing"]["first"]) == {"d7", "d40", "d41"}
    assert found["points"] == found["expected"] - 3 - chunks
    _, out, err = copy.ask("--sample", "0")
    [line] = [line for line in out.splitlines() if line.startswith("FAIL")]
    assert line.startswith("FAIL missing")
    assert "status --rebuild" in line
    assert err == "error: collection 'things' is not what the state file says it is: missing\n"


def test_orphans_are_documents_and_chunks_that_the_state_does_not_know(copy):
    beyond = copy.recorded()["d50"]
    copy.update(
        edge.UpdateOperation.upsert_points([point("stray", 0), point("stray", 1), point("d50", beyond)])
    )
    code, found = copy.compare()
    assert code == 6
    assert found["orphans"]["points"] == 3
    assert set(found["orphans"]["first"]) == {"stray", "d50"}
    assert found["points"] == found["expected"] + 3
    assert found["missing"]["points"] == found["strayed"]["points"] == 0


def test_another_version_of_a_document(copy):
    old = edge.UpdateOperation.set_payload(ids("d60", 1), {"hash": "11" * 16})
    fewer = edge.UpdateOperation.set_payload(ids("d61", 0), {"chunks": 1})
    copy.update(old, fewer)
    code, found = copy.compare("--sample", "0")
    assert code == 6
    assert found["differing"]["points"] == 2
    assert set(found["differing"]["first"]) == {"d60", "d61"}


def test_a_payload_that_was_cleared(copy):
    copy.update(edge.UpdateOperation.clear_payload(ids("d62", 0)))
    code, found = copy.compare("--sample", "0")
    assert code == 6
    assert (found["differing"], found["foreign"]) == ({"points": 1, "first": ["d62"]}, 0)
    assert found["missing"]["points"] == 0


def test_a_vector_that_is_not_its_texts(copy):
    chunks = copy.recorded()["d3"]
    other = point("d3", 0).vector
    copy.update(
        edge.UpdateOperation.update_vectors([edge.PointVectors(ids("d3", 0)[0], other)]),
    )
    code, found = copy.compare("--sample", "10000")
    assert (code, chunks) == (6, 1)
    assert found["strayed"] == {"points": 1, "first": ["d3"]}
    assert found["cosine"] < 0.999
    assert copy.compare("--sample", "0")[0] == 0


def test_points_of_others_are_no_difference(copy):
    vector = np.ones(DIMENSION, np.float32).data
    named = {"document": "d1", "chunk": "the first"}
    theirs = [edge.Point(7, vector, named), edge.Point("ab" * 16, vector, None)]
    copy.update(edge.UpdateOperation.upsert_points(theirs))
    code, found = copy.compare("--sample", "0")
    assert (code, found["foreign"], found["same"]) == (0, 2, True)
    assert "warn foreign" in copy.ask("--sample", "0")[1]
    with closing(open_reader(embedded(copy.folder / "qdrant", dimension=DIMENSION))) as reader:
        [hits] = reader.search(np.ones((1, DIMENSION), np.float32), 2)
    assert {hit.payload.get("chunk") for hit in hits} == {"the first", None}


def test_what_is_in_doubt_is_neither_missing_nor_too_much(copy):
    with closing(sqlite3.connect(copy.folder / "state.sqlite3")) as file, file:
        file.execute("INSERT INTO pending SELECT key, id, 9 FROM records WHERE id IN ('d70', 'd71')")
        file.execute("UPDATE records SET chunks = 0 WHERE id IN ('d70', 'd71')")
    copy.update(edge.UpdateOperation.delete_points(ids("d70", 0)))
    code, found = copy.compare("--sample", "0")
    assert code == 0
    assert found["documents"] == 98
    assert set(found["doubtful"]["first"]) == {"d70", "d71"}
    assert "warn in doubt" in copy.ask("--sample", "0")[1]


def test_a_collection_in_use(copy):
    with Lock.acquire(copy.folder / "qdrant" / "things.lock"):
        code, out, err = copy.ask()
    assert (code, out) == (5, "")
    assert "held by process" in err


@pytest.mark.parametrize(
    ("override", "code"),
    [
        ("state=none.sqlite3", 1),
        ("qdrant.path=none", 1),
        ("encoder.model=hash:32", 4),
    ],
)
def test_there_is_nothing_to_compare(copy, override, code):
    got, out, err = copy.ask("--set", override)
    assert (got, out) == (code, "")
    assert len(err.splitlines()) == 1


def test_a_collection_of_another_state_file(copy):
    with closing(sqlite3.connect(copy.folder / "state.sqlite3")) as file, file:
        file.execute("UPDATE meta SET value = 'other' WHERE name = 'state_id'")
    code, _, err = copy.ask()
    assert code == 4
    assert "another state file" in err


@pytest.mark.slow
def test_a_server(qdrant_server, tmp_path):
    place = Workplace(
        tmp_path, qdrant={"path": None, "url": qdrant_server.url, "grpc_port": qdrant_server.port}
    )
    place.write("a.jsonl", documents(8, words=900))
    place.run()
    found = json.loads(place.ask("verify", "--json").out)
    assert (found["same"], found["disturbed"]) == (True, False)
    assert found["points"] == found["scanned"] == found["sampled"] == sum(place.recorded().values())
    assert found["index"]["name"] == "green"
    with Lock.acquire(tmp_path / "state.sqlite3.lock"):
        assert "warn a run" in place.ask("verify", "--sample", "0").out


def test_the_index_of_a_server():
    verdicts = {}
    for name in ("green", "yellow", "grey", "red", "none"):
        *_, finding = findings(Comparison(index=IndexState(name)))
        verdicts[name] = finding.verdict
    assert verdicts == {"green": "ok", "yellow": "warn", "grey": "warn", "red": "FAIL", "none": "ok"}


def test_cosines():
    one, other = np.array([1, 2], np.float32), np.array([2, 4], np.float32)
    assert cosine_of(one, other) == pytest.approx(1)
    assert cosine_of(one, -other) == pytest.approx(-1)
    assert cosine_of(one, np.zeros(2, np.float32)) == cosine_of(one, one * np.nan) == -1
