"""Collections behind an alias: built beside what is live, verified, switched to, and switched back from."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from qdrant_client import QdrantClient, models

from ingestor import cli
from ingestor.config.settings import load
from ingestor.errors import ConfigError
from ingestor.lock import Lock
from ingestor.running.generations import name_of, own
from ingestor.sink import Target, index_watch
from ingestor.sink.generation import Family, Generation
from tests.querying import connect, queried
from tests.running import DIMENSION, Workplace, documents, failing, run_here
from tests.servers import QdrantServer
from tests.sinks import IDENTITY, served, stored

pytestmark = pytest.mark.whole

COUNT = 40
OTHER = "chunk.max_tokens=24"
"""Another way to cut: a build of its own."""
THIRD = "chunk.max_tokens=16"


@pytest.fixture
def place(tmp_path: Path, qdrant_server: QdrantServer, monkeypatch: pytest.MonkeyPatch) -> Workplace:
    monkeypatch.chdir(tmp_path)
    server = {"path": None, "url": qdrant_server.url, "grpc_port": qdrant_server.port, "alias": "live"}
    made = Workplace(tmp_path, qdrant=server, chunk={"overlap_tokens": 4})
    made.write("a.jsonl", documents(COUNT))
    return made


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs a command here: (exit code, stdout, stderr)."""

    def command(name: str, *arguments: str) -> tuple[int, str, str]:
        code = cli.execute([name, "--config", "c.yaml", *arguments])
        said = capsys.readouterr()
        return code, said.out, said.err

    return command


@pytest.fixture
def client(qdrant_server: QdrantServer) -> Iterator[QdrantClient]:
    client = connect(served(qdrant_server))
    yield client
    client.close()


def name(*overrides: str) -> str:
    """The collection of a configuration."""
    return own(load(Path("c.yaml"), overrides, environ={})).qdrant.collection


def setting(*overrides: str) -> list[str]:
    return [part for override in overrides for part in ("--set", override)]


def live(client: QdrantClient) -> str | None:
    return next(
        (one.collection_name for one in client.get_aliases().aliases if one.alias_name == "live"), None
    )


def collections(client: QdrantClient) -> set[str]:
    return {one.name for one in client.get_collections().collections}


def build(place: Workplace, *overrides: str, **options: int) -> None:
    report = asyncio.run(run_here(place, *overrides, **options))
    assert report.status == "complete"


def test_a_name_hangs_on_both_identities_and_nothing_else() -> None:
    first = name_of("wiki", IDENTITY)
    assert first == name_of("wiki", IDENTITY | {"state": "another"})
    assert (
        len({first, name_of("wiki", IDENTITY | {"record": {}}), name_of("wiki", IDENTITY | {"vector": {}})})
        == 3
    )
    assert first.startswith("wiki__")


def family(*turns: int, live: int | None, **others: int) -> Family:
    """Collections `c0`, `c1` ... with these turns; aliases by the number of what they point at."""
    aliases = {alias: f"c{number}" for alias, number in others.items()}
    aliases |= {} if live is None else {"live": f"c{live}"}
    return Family("live", aliases, tuple(Generation(f"c{n}", {}, turn) for n, turn in enumerate(turns)))


def names(generations: list[Generation]) -> list[str]:
    return [one.name for one in generations]


def test_what_was_live_before() -> None:
    assert names(family(1, 4, 3, 0, live=1).earlier()) == ["c2", "c0"]
    assert names(family(1, 4, 3, 0, live=2).earlier()) == ["c0"]  # c1 was rolled back from
    assert names(family(1, 4, 3, 0, live=0).earlier()) == []
    assert names(family(1, 4, live=None).earlier()) == ["c1", "c0"]  # somebody removed the alias
    assert names(family(1, 4, live=7).earlier()) == ["c1", "c0"]  # it points at a collection of others


def test_what_is_dropped() -> None:
    assert names(family(1, 2, 3, 4, 0, live=3).superfluous(1)) == ["c1", "c0"]
    assert names(family(1, 2, 3, 4, 0, live=3).superfluous(3)) == []
    assert names(family(1, 2, 3, 4, 0, live=3, test=1).superfluous(1)) == ["c0"]


def test_from_nothing_to_live(place, ask, client):
    code, _, err = ask("search", "document")
    assert (code, "points at nothing yet" in err) == (1, True)
    assert ask("promote")[0] == 1
    report = asyncio.run(run_here(place))
    first = name()
    assert (report.collection, report.alias, report.live) == (first, "live", None)
    assert "promote lets live point here (now: nothing)" in report.text()
    assert live(client) is None
    assert (place.folder / f"state{first.removeprefix('things')}.sqlite3").exists()

    code, out, _ = ask("promote", "--sample", "5")
    assert (code, live(client)) == (0, first)
    assert f"alias live: nothing -> {first}" in out
    assert "5 texts embedded again" in out
    assert ask("promote")[1].splitlines()[-1] == f"alias live: {first}, as before"

    again = asyncio.run(run_here(place))
    assert (again.documents.unchanged, again.live) == (COUNT, first)
    assert "promote" not in again.text()
    place.write("b.jsonl", documents(5, start=COUNT))
    assert asyncio.run(run_here(place)).documents.indexed == 5  # into what is live
    assert len(json.loads(ask("search", documents(50)[44]["text"], "--exact", "--json")[1])["hits"]) == 5


def test_another_identity_is_built_beside_what_is_live(place, ask, client, qdrant_server):
    build(place)
    ask("promote")
    first, second = name(), name(OTHER)
    build(place, OTHER)
    assert live(client) == first
    assert collections(client) == {first, second} != {first}
    before = stored(served(qdrant_server, collection=first))
    code, out, _ = ask("check", *setting(OTHER))
    assert (code, f"live points at {first}; this configuration is {second}, to be promoted" in out) == (
        0,
        True,
    )
    found = json.loads(ask("status", "--json", *setting(OTHER))[1])
    assert (found["live"], found["collection"], found["documents"]) == (first, second, COUNT)
    places = {one["collection"]: one["place"] for one in found["generations"]}
    assert places == {first: "live", second: "not promoted yet"}
    said = ask("status", *setting(OTHER))[1]
    assert f"{second}: not promoted yet, hash:{DIMENSION} (this configuration)" in said
    code, said, _ = ask("status", *setting(OTHER), "--set", "qdrant.grpc_port=1")
    assert (code, "no Qdrant server can be reached" in said, f"documents   {COUNT}" in said) == (
        0,
        True,
        True,
    )
    verified = json.loads(ask("verify", "--json", *setting(OTHER))[1])
    assert (verified["collection"], verified["same"], verified["points"]) == (second, True, found["points"])
    assert ask("failures", *setting(OTHER))[1] == "none open\n"

    assert ask("promote", *setting(OTHER))[0] == 0
    assert live(client) == second
    code, out, _ = ask("rollback", *setting(OTHER))
    assert (code, out) == (0, f"alias live: {second} -> {first}\n")
    assert live(client) == first
    assert stored(served(qdrant_server, collection=first)).keys() == before.keys()
    assert ask("rollback")[0] == 1
    assert ask("promote", *setting(OTHER))[0] == 0
    assert live(client) == second


@pytest.mark.slow
def test_old_ones_are_dropped_with_their_state(place, ask, client):
    built = []
    for overrides in ([], [OTHER], [THIRD]):
        build(place, *overrides)
        _, out, _ = ask("promote", "--sample", "0", *setting(*overrides))
        built.append(name(*overrides))
    assert f"dropped {built[0]}" in out
    assert collections(client) == set(built[1:])
    states = {path.name for path in place.folder.glob("state*.sqlite3")}
    assert states == {f"state{one.removeprefix('things')}.sqlite3" for one in built[1:]}
    ask("rollback")
    assert live(client) == built[1]
    build(place)  # the first one is built anew
    ask("promote", "--sample", "0", "--set", "qdrant.keep=2")
    ask("rollback")
    assert live(client) == built[1]  # not the one that was rolled back from
    assert collections(client) == set(built)


@pytest.mark.slow
def test_what_a_run_writes_to_is_not_dropped(place, ask, client):
    build(place)
    ask("promote", "--sample", "0")
    first = own(load(Path("c.yaml"), environ={}))
    build(place, OTHER)
    ask("promote", "--sample", "0", *setting(OTHER))
    build(place, THIRD)
    with Lock.acquire(Path(first.state + ".lock")):
        code, out, _ = ask("promote", "--sample", "0", *setting(THIRD))
    assert (code, "a run is writing to it" in out) == (0, True)
    assert first.qdrant.collection in collections(client)
    assert f"dropped {first.qdrant.collection}" in ask("promote", "--sample", "0", *setting(THIRD))[1]
    assert first.qdrant.collection not in collections(client)


def test_an_interrupted_build_is_continued_and_not_promoted_before(place, ask, client):
    build(place, limit=10)
    code, _, err = ask("promote")
    assert (code, "1 shards were not read to their end (a.jsonl)" in err) == (6, True)
    assert live(client) is None
    report = asyncio.run(run_here(place))
    assert (report.documents.unchanged, report.documents.indexed) == (10, COUNT - 10)
    assert ask("promote")[0] == 0


@pytest.mark.parametrize("wrong", ["failures", "missing", "red", "locked"])
def test_what_is_not_as_it_should_be_is_not_promoted(place, ask, client, qdrant_server, wrong):
    if wrong == "failures":
        place.write("b.jsonl", [{"id": "x"}])
    build(place)
    expected, said = 6, ""
    if wrong == "failures":
        said = "1 failures are open, and failures.tolerate is 0"
    elif wrong == "missing":
        said = "is not what the state file says it is: missing"
        page, _ = client.scroll(name(), limit=1)
        client.delete(name(), [page[0].id])
    elif wrong == "red":
        expected, said = 1, "no space"
        qdrant_server.script({"status": "Red", "error": "no space"})
    else:
        expected, said = 5, "held by process"
    held = (
        Lock.acquire(Path(own(load(Path("c.yaml"), environ={})).state + ".lock"))
        if wrong == "locked"
        else None
    )
    code, _, err = ask("promote")
    if held:
        held.release()
    assert (code, said in err) == (expected, True), err
    assert live(client) is None
    if wrong == "failures":
        build(place, "failures.tolerate=1")
        assert ask("promote", "--set", "failures.tolerate=1")[0] == 0


def test_promote_waits_for_the_index(place, ask, client, qdrant_server, monkeypatch):
    monkeypatch.setattr(index_watch, "LOOK_S", (0.05, 0.05))
    build(place)
    built = name()
    qdrant_server.script(*[{"status": "Yellow"}] * 6, {"status": "Grey"})  # until it is woken
    code, _, err = ask("promote", "--sample", "0")
    assert (code, live(client)) == (0, built)
    assert err.count("waiting until the server has built the index") == 1


def test_a_collection_from_before_the_alias_is_taken_over(place, ask, client):
    build(place, "qdrant.alias=null")
    build(place)
    assert collections(client) == {"things"}
    assert ask("promote")[0] == 0
    assert live(client) == "things"
    build(place, OTHER)
    assert collections(client) == {"things", name(OTHER)}


def test_what_is_live_is_not_recreated(place, ask, client):
    build(place)
    build(place, recreate=True)
    ask("promote", "--sample", "0")
    failure = asyncio.run(failing(place, recreate=True))
    assert isinstance(failure, ConfigError)
    assert "--full embeds everything again in place" in str(failure)
    assert asyncio.run(run_here(place, full=True)).documents.indexed == COUNT


def test_search_asks_what_is_live(place, ask, client):
    build(place)
    ask("promote", "--sample", "0")
    build(place, "encoder.model=hash:32")
    code, _, err = ask("search", "document", *setting("encoder.model=hash:32"))
    assert (code, "another model" in err) == (4, True)
    assert ask("search", "document")[0] == 0


def test_an_alias_that_is_a_collection(place, client):
    vector = models.VectorParams(size=8, distance=models.Distance.COSINE)
    client.create_collection("live", vectors_config=vector)
    failure = asyncio.run(failing(place))
    assert isinstance(failure, ConfigError)
    assert "'live' is the name of a collection" in str(failure)


@pytest.mark.parametrize("command", ["promote", "rollback"])
def test_commands_without_an_alias(place, ask, command):
    code, _, err = ask(command, "--set", "qdrant.alias=null")
    assert (code, "qdrant.alias is not set" in err) == (2, True)


def test_dry_run_knows_which_build_it_is(place):
    build(place)
    assert asyncio.run(run_here(place, dry_run=True)).documents.unchanged == COUNT
    assert asyncio.run(run_here(place, OTHER, dry_run=True)).documents.would_index == COUNT


def test_a_lost_answer_to_the_switch_does_no_harm(place, ask, client, qdrant_server):
    build(place)
    qdrant_server.fault("Collections/UpdateAliases", code="UNAVAILABLE", after=True)
    assert ask("promote", "--sample", "0")[0] == 0
    assert live(client) == name()


def check_switching(
    place: Workplace, ask: Callable[..., tuple[int, str, str]], target: Target, times: int
) -> None:
    """Promote and roll back while readers query the alias."""
    other = setting("source.metadata_fields=[]")
    build(place)
    ask("promote", "--sample", "0")
    build(place, "source.metadata_fields=[]")
    with queried(target, "live") as (found, failed):
        for _ in range(times):
            assert ask("promote", "--sample", "0", *other)[0] == 0
            assert ask("rollback")[0] == 0
    print(f"{times} promotions and rollbacks, {found.total()} queries: {dict(found)}, {len(failed)} failed")
    assert failed == []
    assert set(found) == {"with kind", "without"}


def test_switching_under_readers(place, ask, qdrant_server):
    check_switching(place, ask, served(qdrant_server, dimension=DIMENSION), 3)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_switching_many_times_under_readers(place, ask, qdrant_server, pytestconfig):
    """`--kills N` times."""
    check_switching(
        place, ask, served(qdrant_server, dimension=DIMENSION), 5 * pytestconfig.getoption("kills")
    )
