"""The lock: one holder, told by its process id, gone with it."""

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
from multiprocessing import get_context
from pathlib import Path

import pytest

from ingestor.errors import ConfigError, LockedError
from ingestor.lock import Lock
from tests.running import Workplace, documents

HOLD = """
import sys
from pathlib import Path
from ingestor.lock import Lock
lock = Lock.acquire(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the lock until its input ends."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout.readline() == b"held\n"
        yield process
        process.kill()


def test_held_by_another(holder, tmp_path):
    with pytest.raises(LockedError, match=rf"lock: held by process {holder.pid};") as caught:
        Lock.acquire(tmp_path / "lock")
    assert caught.value.exit_code == 5


def test_gone_with_its_holder(holder, tmp_path):
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    with Lock.acquire(tmp_path / "lock") as lock:
        assert lock.path.read_text() == str(os.getpid())


def test_waits_for_the_holder(holder, tmp_path):
    asked = []

    def end_holder() -> bool:
        asked.append(True)
        holder.stdin.close()
        return False

    Lock.acquire(tmp_path / "lock", 60, end_holder).release()
    assert asked


def test_waiting_can_be_called_off(holder, tmp_path):
    with pytest.raises(LockedError):
        Lock.acquire(tmp_path / "lock", 3600, lambda: True)


def test_released_for_the_next(tmp_path):
    for _ in range(2):
        with Lock.acquire(tmp_path / "lock"), pytest.raises(LockedError):
            Lock.acquire(tmp_path / "lock")


def test_folder_is_made(tmp_path):
    Lock.acquire(tmp_path / "a" / "b" / "lock").release()
    assert (tmp_path / "a" / "b" / "lock").exists()


def test_no_place_for_it(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="lock file cannot be made"):
        Lock.acquire(tmp_path / "file" / "lock")


def test_no_room_for_the_name_of_its_holder(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    with Lock.acquire(tmp_path / "lock"), pytest.raises(LockedError, match="held by process unknown"):
        Lock.acquire(tmp_path / "lock")


def test_no_locks_on_this_file_system(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(ConfigError, match=r"/lock: the lock file cannot be locked: No locks available; name"):
        Lock.acquire(tmp_path / "lock")


def open_files() -> set[str]:
    return {os.path.realpath(f"/proc/self/fd/{handle}") for handle in os.listdir("/proc/self/fd")}


def test_workers_do_not_inherit_it(tmp_path):
    with Lock.acquire(tmp_path / "lock"), get_context("spawn").Pool(1) as pool:
        held = str(tmp_path / "lock")
        assert held in open_files()
        assert held not in pool.apply(open_files)


@pytest.mark.whole
def test_of_two_runs_at_the_same_moment_one_works(tmp_path):
    check_pairs(tmp_path, 1)


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_of_many_pairs_of_runs_one_works_each_time(tmp_path, pytestconfig):
    """`--pairs N` for more of them."""
    check_pairs(tmp_path, pytestconfig.getoption("pairs"))


def check_pairs(tmp_path: Path, pairs: int) -> None:
    for number in range(pairs):
        place = Workplace(tmp_path / str(number))
        place.write("a.jsonl", documents(50))
        runs = [place.start_warm_run("--report", f"{name}.json") for name in ("one", "other")]
        works, waits = sorted((place.end(run) for run in runs), key=lambda ended: ended.code)
        assert (works.code, waits.code) == (0, 5)
        assert len(waits.errors) == 1
        assert any(f"held by process {run.pid};" in waits.err for run in runs)
        counts = [
            json.loads((place.folder / f"{name}.json").read_text())["documents"] for name in ("one", "other")
        ]
        assert sorted(count["indexed"] for count in counts) == [0, 50]
        assert len(place.points()) == 50
        print(f"pair {number}: exit codes {works.code} and {waits.code}")


@pytest.mark.slow
def test_runs_that_wait_for_each_other(tmp_path):
    place = Workplace(tmp_path)
    place.write("a.jsonl", documents(50))
    waiting = [place.start_warm_run("--lock-wait", "60", "--full") for _ in range(2)]
    assert [place.end(run).code for run in waiting] == [0, 0]


@pytest.mark.whole
def test_a_stop_ends_the_waiting(tmp_path):
    place = Workplace(tmp_path)
    place.write("a.jsonl", documents(5))
    with Lock.acquire(place.folder / "state.sqlite3.lock"):
        run = place.start_run("--lock-wait", "60")
        assert run.stderr is not None
        said = run.stderr.readline()  # its first line; signals are seen to by then
        run.send_signal(signal.SIGTERM)
        ended = place.end(run)
    assert (ended.code, ended.report["status"]) == (143, "stopped"), said + ended.err
    assert not (place.folder / "state.sqlite3").exists()
