"""A first load with its index put off: whatever happens to the run, the server gets its settings back."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from contextlib import chdir, suppress
from pathlib import Path

import pytest

from ingestor.errors import IdentityMismatchError, SinkError
from ingestor.running import bulk
from ingestor.sink import Target, index_watch
from ingestor.sink.server_index import ServerIndex
from ingestor.watching.report import Report
from tests.running import (
    DIMENSION,
    Workplace,
    documents,
    eventually,
    failing,
    have_ended,
    kill_alone,
    moments,
    run_here,
)
from tests.servers import QdrantServer
from tests.sinks import served

pytestmark = pytest.mark.whole

M = 24
MANY = 6_000
"""So many that a run is still in the middle when its first documents are recorded."""


@pytest.mark.parametrize(
    ("wanted", "points", "on_gpu", "gigabytes", "off"),
    [
        ("auto", 0, True, 1, True),
        ("auto", 0, True, 0.1, False),
        ("auto", 0, False, 1, False),
        ("auto", 1, True, 1, False),
        ("on", 0, False, 0, True),
        ("on", 1, True, 1, False),
    ],
)
def test_when_an_index_is_put_off(wanted, points, on_gpu, gigabytes, off) -> None:
    text_bytes = int(gigabytes * 1e9)
    assert bulk.puts_off(wanted, points=points, on_gpu=on_gpu, text_bytes=text_bytes) is off


@pytest.fixture
def target(qdrant_server: QdrantServer) -> Target:
    return served(qdrant_server, dimension=DIMENSION)


@pytest.fixture
def place(tmp_path: Path, qdrant_server: QdrantServer, monkeypatch: pytest.MonkeyPatch) -> Workplace:
    monkeypatch.chdir(tmp_path)
    made = workplace(tmp_path, qdrant_server)
    made.write("a.jsonl", documents(300))
    return made


def workplace(folder: Path, server: QdrantServer, **qdrant) -> Workplace:
    asked = {"path": None, "url": server.url, "grpc_port": server.port, "hnsw": {"m": M}, "bulk": "on"}
    return Workplace(folder, qdrant=asked | qdrant)


@pytest.fixture(scope="module")
def many(tmp_path_factory) -> Path:
    place = Workplace(tmp_path_factory.mktemp("many"))
    place.write("a.jsonl", documents(MANY))
    return place.shards / "a.jsonl"


@pytest.fixture
def long(
    tmp_path: Path, qdrant_server: QdrantServer, many: Path, monkeypatch: pytest.MonkeyPatch
) -> Workplace:
    monkeypatch.chdir(tmp_path)
    made = workplace(tmp_path, qdrant_server)
    (made.shards / "a.jsonl").symlink_to(many)
    return made


def links(target: Target) -> int | None:
    with ServerIndex(target) as index:
        return index.links()


def points(target: Target) -> int:
    with ServerIndex(target) as index:
        return index.count() if index.links() is not None else 0


def told(report: Report, kind: str) -> list[str]:
    return [warning.detail for warning in report.warnings if warning.kind == kind]


async def until(condition: Callable[[], object]) -> None:
    """Look again and again, off the loop, until a condition holds."""
    await asyncio.to_thread(eventually, condition)


async def test_put_off_and_put_back(long, target, qdrant_server):
    running = asyncio.create_task(run_here(long))
    await until(lambda: links(target) == 0 and points(target) > 0)
    assert links(target) == 0
    report = await running
    assert (report.status, links(target), points(target)) == ("complete", M, MANY)
    assert told(report, "bulk") == told(report, "drift") == []
    assert qdrant_server.calls("Collections/Update") == 2
    long.write("b.jsonl", documents(1, start=MANY))
    assert told(await run_here(long), "bulk") == [
        f"the collection holds {MANY:,} points; only the load of an empty one is put off"
    ]
    assert told(await run_here(long), "bulk") == []  # nothing was read
    assert qdrant_server.calls("Collections/Update") == 2


@pytest.mark.slow
async def test_stopped_load(long, target):
    stop = asyncio.Event()
    running = asyncio.create_task(run_here(long, stop=stop))
    await until(lambda: links(target) == 0 and points(target) > 0)
    stop.set()
    report = await running
    assert (report.status, links(target)) == ("stopped", M)
    assert report.documents.indexed < MANY
    assert told(await run_here(long, "qdrant.bulk=auto"), "bulk") == []
    assert (links(target), points(target)) == (M, MANY)


async def test_stop_while_the_index_is_put_off(place, target, qdrant_server):
    qdrant_server.fault("Collections/Update", delay=1)
    stop = asyncio.Event()
    running = asyncio.create_task(run_here(place, stop=stop))
    await until(lambda: qdrant_server.calls("Collections/Update"))
    stop.set()
    assert ((await running).status, links(target)) == ("stopped", M)
    qdrant_server.mend()
    assert links(target) == M  # nor does the 0 come later


async def test_failed_load(place, target, qdrant_server):
    qdrant_server.fault(code="NOT_FOUND")
    assert "not there any more" in str(await failing(place))
    assert links(target) == M


async def test_settings_that_cannot_be_put_back_stay_in_the_state_file(place, target, qdrant_server):
    qdrant_server.fault("Collections/Update", code="INTERNAL", skip=1, times=8)
    assert "fault" in str(await failing(place))
    assert (links(target), len(place.recorded())) == (0, 300)
    [said] = told(await run_here(place, "qdrant.url=http://localhost:6333"), "bulk")  # of which nobody knows
    assert "run once with that url" in said
    assert links(target) == 0
    assert isinstance(await failing(place, "encoder.model=hash:32"), IdentityMismatchError)
    assert links(target) == M  # before the run was refused


def test_an_index_is_not_done_before_a_change_is_taken_up(target: Target) -> None:
    """Green at first: a server that has not taken it up yet is done with what it had to do before."""
    watch, colors = index_watch.Watch(target, looks=2), ("green", "yellow", "green", "green")
    judged = [
        watch.judge(index_watch.Condition(color, "", 0, 5, 5), at_s) for at_s, color in enumerate(colors)
    ]
    wait, done = index_watch.Verdict.WAIT, index_watch.Verdict.DONE
    assert judged == [wait, wait, wait, done]
    assert index_watch.Watch(target).judge(index_watch.Condition("green", "", 0, 5, 5), 0.0) is done


async def test_waits_until_the_index_is_built(place, target, qdrant_server, monkeypatch):
    monkeypatch.setattr(index_watch, "LOOK_S", (0.05, 0.05))
    qdrant_server.script(
        {"status": "Yellow"},
        {"status": "Green", "queue": 3},
        {"status": "Grey"},  # until it is woken
        {"status": "Yellow"},
        updates=2,
    )
    assert (await run_here(place)).status == "complete"
    assert qdrant_server.calls("Collections/Update") == 3  # put off, put back, woken
    with ServerIndex(target) as index:
        assert index.condition().settled


async def test_index_that_cannot_be_built(place, target, qdrant_server, monkeypatch):
    monkeypatch.setattr(index_watch, "AGAIN_S", 0.5)
    qdrant_server.script({"status": "Red", "error": "no space left for segments"}, updates=2)
    assert "no space left for segments" in str(await failing(place))
    assert (links(target), len(place.recorded())) == (M, 300)


def test_a_server_that_is_red_may_try_once_more(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_watch, "AGAIN_S", 3.0)
    watch, red = index_watch.Watch(target), index_watch.Condition("red", "no room", 0, 5, 0)
    assert watch.judge(red, 100.0) is index_watch.Verdict.WAKE
    assert watch.judge(red, 102.0) is index_watch.Verdict.WAIT
    with pytest.raises(SinkError, match="red: no room"):
        watch.judge(red, 103.0)


async def test_index_that_failed_for_want_of_room_is_tried_again(place, qdrant_server, monkeypatch):
    wake = ServerIndex.wake

    def wake_late(index: ServerIndex) -> None:
        wake(index)
        raise SinkError("deadline_exceeded")  # it was heard all the same

    monkeypatch.setattr(ServerIndex, "wake", wake_late)
    qdrant_server.script({"status": "Red", "error": "no space left"}, {"status": "Yellow"}, updates=2)
    assert (await run_here(place)).status == "complete"
    assert qdrant_server.calls("Collections/Update") == 3  # put off, put back, woken


async def test_server_that_is_silent_while_it_builds(place, target, monkeypatch):
    monkeypatch.setattr(index_watch, "LOOK_S", (0.05, 0.05))
    answer, looks = ServerIndex.condition, []

    def condition(index: ServerIndex) -> index_watch.Condition:
        looks.append(index)
        if len(looks) < 3:
            raise SinkError("no answer")
        return answer(index)

    monkeypatch.setattr(ServerIndex, "condition", condition)
    assert (await run_here(place)).status == "complete"
    monkeypatch.setattr(bulk, "AWAY_S", 0.0)
    monkeypatch.setattr(ServerIndex, "condition", failing_look)
    place.write("b.jsonl", documents(1, start=300))
    assert "no answer" in str(
        await failing(place, "qdrant.collection=another", f"state={place.folder}/another")
    )


def failing_look(_: ServerIndex) -> index_watch.Condition:
    raise SinkError("no answer")


async def test_stop_while_the_index_is_built(place, target, qdrant_server):
    qdrant_server.script(*[{"status": "Yellow"}] * 10_000, updates=2)
    stop = asyncio.Event()
    running = asyncio.create_task(run_here(place, stop=stop))
    await until(lambda: len(place.recorded()) == 300 and links(target) == M)
    stop.set()
    async with asyncio.timeout(10):
        assert (await running).status == "stopped"


async def test_index_that_shows_no_progress(place, qdrant_server, monkeypatch):
    monkeypatch.setattr(index_watch, "PATIENCE_S", 0.3)
    qdrant_server.script(*[{"status": "Yellow"}] * 10_000, updates=2)
    report = await run_here(place)
    assert (report.status, report.exit_code) == ("complete", 0)
    [said] = told(report, "bulk")
    assert "showed no progress" in said


async def test_embedded_engine_has_nothing_to_put_off(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    place = Workplace(tmp_path)
    place.write("a.jsonl", documents(10))
    assert told(await run_here(place, "qdrant.bulk=on"), "bulk") == [
        "the embedded engine builds its index at the end of each run; set auto"
    ]
    place.write("b.jsonl", documents(1, start=10))
    assert told(await run_here(place), "bulk") == []


def check_killed_loads(tmp_path: Path, server: QdrantServer, many: Path, kills: int) -> None:
    """Kill loads at moments all over the time from when the index is put off to the end of the run; the
    settings are read back from the server each time.
    """
    target, found = served(server, dimension=DIMENSION), Counter[int | None]()

    def start(folder: str) -> tuple[Workplace, subprocess.Popen[str]]:
        server.reset()
        place = workplace(tmp_path / folder, server)
        (place.shards / "a.jsonl").symlink_to(many)
        process = place.start_run()
        eventually(lambda: links(target) == 0)
        return place, process

    place, process = start("unbroken")
    since = time.monotonic()
    assert place.end(process).code == 0
    for number, moment in enumerate(moments(kills, first=0, last=time.monotonic() - since, seed=3)):
        place, process = start(str(number))
        with suppress(subprocess.TimeoutExpired):
            process.wait(moment)
        assert have_ended(kill_alone(process))
        process.communicate(timeout=10)
        left, recorded = links(target), len(place.recorded())
        found[left] += 1
        with chdir(place.folder):
            report = asyncio.run(run_here(place, f"qdrant.bulk={'off' if number % 2 else 'auto'}"))
        assert (links(target), points(target), report.warnings) == (M, MANY, [])
        print(f"killed {moment:.2f} s on: m {left}, {recorded} of {MANY} recorded; then m {links(target)}")
    print(f"{kills} kills: {found[0]} found m 0, {found[M]} found it put back already")
    assert found[0]
    assert set(found) <= {0, M}


def test_killed_load(long, target):
    process = long.start_run()
    eventually(lambda: links(target) == 0 and points(target) > 0)
    assert have_ended(kill_alone(process))
    process.communicate(timeout=10)
    assert links(target) == 0
    long.run("--set", "qdrant.bulk=off")
    assert (links(target), points(target)) == (M, MANY)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_loads_killed_at_many_moments(tmp_path, qdrant_server, many, pytestconfig):
    """`--kills N` for more of them."""
    check_killed_loads(tmp_path, qdrant_server, many, pytestconfig.getoption("kills"))
