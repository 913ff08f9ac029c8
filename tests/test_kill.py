"""Runs that are killed or stopped at any moment, and the next run, which must complete the work."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from ingestor.buffers import sweep
from tests.running import (
    Ended,
    Workplace,
    children,
    documents,
    eventually,
    have_ended,
    kill_alone,
    moments,
    same_points,
    workers,
)
from tests.warm import WarmRun

pytestmark = pytest.mark.whole

COUNT = 6000
MANY = 16_000
"""So many that a run is still in the middle when its first documents are recorded."""


def workplace(folder: Path, count: int) -> Workplace:
    """Three shards, and chunks small enough that some documents have several."""
    made = Workplace(folder, chunk={"max_tokens": 24, "overlap_tokens": 4})
    third = count // 3
    for index, name in enumerate(("a", "b", "c")):
        start = index * third
        made.write(f"{name}.jsonl", documents(third if index < 2 else count - start, start=start))
    return made


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory) -> tuple[dict, float]:
    """What an unbroken run leaves, and how long it took, in seconds."""
    place = workplace(tmp_path_factory.mktemp("unbroken"), COUNT)
    place.end(place.start_warm_run("--dry-run"))  # the first one of all takes seconds to import
    since = time.monotonic()
    place.end(place.start_warm_run())
    return place.points(), time.monotonic() - since


def run_again(place: Workplace) -> Ended:
    """The run after one that did not end; what was recorded by then must not be embedded again."""
    before = place.recorded()
    ended = place.end(place.start_warm_run())
    assert ended.code == 0, ended.err
    counts, embedded = ended.documents, ended.report["points"]["upserted"]
    assert ended.report["status"] == "complete"
    assert counts.get("unchanged", 0) == len(before)
    assert counts.get("indexed", 0) == counts["read"] - len(before)
    after = place.recorded()
    assert embedded == ended.report["chunks"]["embedded"] == sum(after.values()) - sum(before.values())
    assert sweep(str(place.state.resolve())) == 0  # no shared memory is left, of neither run
    return ended


def wait_at_most(process: subprocess.Popen[str] | WarmRun, seconds: float) -> None:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return


def await_moment(place: Workplace, process: WarmRun, index: int, moment: float) -> str:
    """Let a run go on for so many seconds, or every other one for a third of them from when its collection is
    there: most of a short run is its beginning. Says when it is.
    """
    if index % 2 == 0:
        wait_at_most(process, moment)
        return f"after {moment:.2f} s"
    eventually(lambda: (place.folder / "qdrant" / "things").exists() or process.poll() is not None)
    wait_at_most(process, moment / 3)
    return f"after {moment / 3:.2f} s of writing"


def kill_at(place: Workplace, index: int, moment: float) -> str:
    """Kill a run's main process alone at a moment; when, and how much it had recorded."""
    process = place.start_warm_run()
    when = await_moment(place, process, index, moment)
    handles = kill_alone(process)
    assert have_ended(handles)
    process.communicate(timeout=10)  # no one holds its stderr any more
    return f"{when}, {len(place.recorded())} of {COUNT} recorded"


def check_killed_runs(tmp_path: Path, unbroken: tuple[dict, float], kills: int, seed: int) -> None:
    points, seconds = unbroken
    for index, moment in enumerate(moments(kills, first=0.1, last=seconds, seed=seed)):
        place = workplace(tmp_path / str(index), COUNT)
        killed = kill_at(place, index, moment)
        counts = run_again(place).documents
        print(f"killed {killed}, then {counts}")
        assert same_points(points, place.points())
        shutil.rmtree(place.folder)


def test_kill_of_the_main_process(tmp_path, unbroken):
    check_killed_runs(tmp_path, unbroken, 2, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_kill_of_the_main_process_at_many_moments(tmp_path, unbroken, pytestconfig):
    """`--kills N` for more of them."""
    check_killed_runs(tmp_path, unbroken, pytestconfig.getoption("kills"), seed=2)


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_kill_of_a_worker_at_many_moments(tmp_path, unbroken, pytestconfig):
    """A quarter of `--kills`: the run says so and ends, with all of its other processes."""
    points, seconds = unbroken
    dice = random.Random(3)
    for index, moment in enumerate(
        moments(pytestconfig.getoption("kills") // 4, first=0.1, last=seconds, seed=3)
    ):
        place = workplace(tmp_path / str(index), COUNT)
        process = place.start_warm_run()
        when = await_moment(place, process, index, moment)
        handles = [os.pidfd_open(child) for child in children(process.pid)]
        found = sorted(workers(process.pid).items())
        name, victim = dice.choice(found) if found else ("nobody", 0)
        if victim:
            os.kill(victim, signal.SIGKILL)
        ended = place.end(process)
        assert ended.code == 0 or (ended.code == 1 and "SIGKILL" in ended.errors[0])
        assert have_ended(handles)
        counts = run_again(place).documents
        print(f"{name} killed {when}, exit code {ended.code}, then {counts}")
        assert same_points(points, place.points())
        shutil.rmtree(place.folder)


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_stop_of_the_group_at_many_moments(tmp_path, unbroken, pytestconfig):
    """A tenth of `--kills`; a quarter of these get a second signal while the sink hangs."""
    points, seconds = unbroken
    for index, moment in enumerate(
        moments(max(4, pytestconfig.getoption("kills") // 10), first=0.1, last=seconds, seed=4)
    ):
        place = workplace(tmp_path / str(index), COUNT)
        process = place.start_warm_run()
        when = await_moment(place, process, index, moment)
        hangs = index % 4 == 3 and stop_the_sink(process)
        since = time.monotonic()
        signal_group(process)
        if hangs:
            wait_at_most(process, 1.2)
            handles = [os.pidfd_open(child) for child in children(process.pid)]
            since = time.monotonic()
            signal_group(process)
            assert process.wait(5) == 143
            assert have_ended(handles)
        ended = place.end(process)
        took = time.monotonic() - since
        assert took < (2 if hangs else 10)
        assert ended.code in (0, 143, -signal.SIGTERM)  # the last where it did not listen yet
        assert hangs or ended.code != 143 or ended.report["status"] == "stopped"
        counts = run_again(place).documents
        print(f"stopped {when}, {hangs=}, exit code {ended.code} in {took:.2f} s, then {counts}")
        assert same_points(points, place.points())
        shutil.rmtree(place.folder)


def stop_the_sink(process: WarmRun) -> bool:
    """Let the process that writes to the collection hang; whether there is one."""
    if sink := workers(process.pid).get("sink"):
        os.kill(sink, signal.SIGSTOP)
    return sink is not None


def signal_group(process: WarmRun) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)


def has_recorded_more(place: Workplace, *, than: int) -> bool:
    return len(place.recorded()) > than


@pytest.mark.slow
def test_kill_in_the_middle_again_and_again(tmp_path, unbroken):
    """Several runs that were killed leave no more in the way than one."""
    place, known = workplace(tmp_path, COUNT), 0
    for _ in range(2):
        process = place.start_run()
        eventually(partial(has_recorded_more, place, than=known))
        assert have_ended(kill_alone(process))
        process.communicate(timeout=10)
        assert len(place.recorded()) >= known
        known = len(place.recorded())
        place.ask("verify", "--sample", "0")  # what was under way is in doubt, and nothing else is amiss
    assert known > 0
    run_again(place)
    assert same_points(unbroken[0], place.points())


@pytest.mark.slow
def test_kill_and_the_loss_of_the_state_file(tmp_path, unbroken):
    """What the killed run had half written is found among the points, and embedded again."""
    place = workplace(tmp_path, COUNT)
    process = place.start_run()
    eventually(partial(has_recorded_more, place, than=0))
    assert have_ended(kill_alone(process))
    process.communicate(timeout=10)
    known = len(place.recorded())
    for path in place.folder.glob("state.sqlite3*"):
        path.unlink()
    place.ask("status", "--rebuild")
    assert place.run().documents.get("unchanged", 0) >= known
    place.ask("verify")
    assert same_points(unbroken[0], place.points())


@pytest.fixture(scope="module")
def many(tmp_path_factory) -> Path:
    """A shard of many documents, for runs that last some seconds."""
    place = Workplace(tmp_path_factory.mktemp("many"))
    place.write("a.jsonl", documents(MANY))
    return place.shards


@pytest.fixture
def long(tmp_path, many) -> Workplace:
    return Workplace(tmp_path, source={"paths": [str(many)]})


def test_stop_in_the_middle(long):
    process = long.start_run()
    eventually(long.recorded)
    since = time.monotonic()
    process.send_signal(signal.SIGTERM)
    stopped = long.end(process)
    assert time.monotonic() - since < 10
    assert stopped.code == 143
    assert stopped.errors == []
    assert "stopping: " in stopped.err
    assert (stopped.report["status"], stopped.report["exit_code"]) == ("stopped", 143)
    counts = stopped.report["documents"]
    assert 0 < counts["indexed"] < MANY
    assert counts["indexed"] == len(long.recorded())
    run_again(long)
    assert len(long.recorded()) == len(long.points()) == MANY


@pytest.mark.slow
def test_signal_to_the_whole_group(long):
    """As Ctrl-C and `timeout` send it: workers have a session of their own, so that they can drain."""
    process = long.start_run()
    eventually(long.recorded)
    process.send_signal(signal.SIGINT)
    for child in workers(process.pid).values():
        os.kill(child, signal.SIGINT)
    stopped = long.end(process)
    assert stopped.code == 130
    assert stopped.errors == []


def test_stop_before_there_is_anything_to_stop(long):
    process = long.start_run()
    process.stderr.readline()  # the first line comes when signals are heard
    process.send_signal(signal.SIGTERM)
    stopped = long.end(process)
    assert stopped.code == 143
    assert stopped.report["status"] == "stopped"


@pytest.fixture
def stuck(tmp_path, qdrant_server) -> Workplace:
    """A run that waits for a server which wants to be asked again much later."""
    place = Workplace(
        tmp_path,
        qdrant={"path": None, "url": qdrant_server.url, "grpc_port": qdrant_server.port},
    )
    place.write("a.jsonl", documents(300))
    for _ in range(4):
        qdrant_server.fault(code="RESOURCE_EXHAUSTED", metadata={"retry-after": "25"})
    return place


@pytest.mark.slow
def test_second_signal_ends_a_run_at_once(stuck, qdrant_server):
    process = stuck.start_run()
    eventually(qdrant_server.calls)
    process.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1.2)  # it is draining
    handle = os.pidfd_open(workers(process.pid)["sink"])
    process.send_signal(signal.SIGTERM)
    process.wait(5)
    ended = stuck.end(process)
    assert ended.code == 143
    assert have_ended([handle])
    qdrant_server.reset()
    run_again(stuck)


@pytest.mark.slow
def test_drain_that_takes_too_long(stuck, qdrant_server):
    process = stuck.start_run("--drain-timeout", "1")
    eventually(qdrant_server.calls)
    since = time.monotonic()
    process.send_signal(signal.SIGTERM)
    ended = stuck.end(process)
    assert time.monotonic() - since < 20  # not the half minute that a sink has for closing
    assert ended.code == 1
    [error] = ended.errors
    assert "could not be written in time" in error
    qdrant_server.reset()
    run_again(stuck)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("prepare", "prepares documents"),
        pytest.param("sink", "collection 'things' in qdrant: ", marks=pytest.mark.slow),
    ],
    ids=["prepare", "sink"],
)
def test_killed_worker(long, name, said):
    process = long.start_run()
    eventually(long.recorded)
    os.kill(workers(process.pid)[name], signal.SIGKILL)
    ended = long.end(process)
    assert ended.code == 1
    [error] = ended.errors
    assert said in error
    assert "SIGKILL" in error
    assert ended.report["status"] == "failed"
    assert 0 < ended.report["documents"]["indexed"] < MANY
    run_again(long)
    assert len(long.recorded()) == len(long.points()) == MANY


NAMESPACE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")


@pytest.fixture
def contained(long) -> Workplace:
    """Runs here are process 1 of their own little world, as in a container without an init."""
    if not shutil.which("unshare") or subprocess.run([*NAMESPACE, "true"], capture_output=True).returncode:
        pytest.skip("process namespaces are not permitted here")
    long.prefix = NAMESPACE
    return long


def test_stop_as_process_1(contained):
    """It gets no signal that it has not asked for, and nobody else takes care of its children."""
    process = contained.start_run()
    eventually(contained.recorded)
    [first] = children(process.pid)
    handles = [os.pidfd_open(child) for child in children(first)]
    os.kill(first, signal.SIGTERM)
    stopped = contained.end(process)
    assert (stopped.code, stopped.report["status"]) == (143, "stopped")
    assert len(handles) >= 2
    assert have_ended(handles)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["prepare", "sink"])
def test_killed_worker_of_process_1(contained, name):
    process = contained.start_run()
    eventually(contained.recorded)
    [first] = children(process.pid)
    os.kill(workers(first)[name], signal.SIGKILL)
    ended = contained.end(process)
    assert ended.code == 1
    assert "SIGKILL" in ended.errors[0]
    contained.prefix = ()
    run_again(contained)


@pytest.mark.slow
def test_second_signal_to_process_1(contained):
    process = contained.start_run()
    eventually(contained.recorded)
    [first] = children(process.pid)
    handles = [os.pidfd_open(child) for child in children(first)]
    os.kill(workers(first)["sink"], signal.SIGSTOP)
    os.kill(first, signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1.2)
    since = time.monotonic()
    os.kill(first, signal.SIGTERM)
    assert contained.end(process).code == 143
    assert time.monotonic() - since < 2
    assert have_ended(handles)
