"""When the machine has too little of something: a message, the right code, and the next run completes."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import psutil
import pytest

from ingestor.ending import in_words
from ingestor.errors import ResourceError
from ingestor.records import ChunkBlock, Points
from ingestor.running.dry_run import write_chunks
from ingestor.sink.engine import engine_errors
from ingestor.state.identity import as_ids
from ingestor.state.ledger import Ledger
from tests.running import Ended, Workplace, documents, eventually, same_points

pytestmark = pytest.mark.whole

COUNT = 6_000
"""So many that state file and collection take some megabytes."""


class Disk:
    """A disk of a few megabytes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def resize(self, size: str) -> None:
        subprocess.run(["mount", "-o", f"remount,size={size}", self.folder], check=True)

    def fill(self, *, but: int = 0) -> Path:
        """Take all that is left, but for so many bytes; gives what can be removed again."""
        ballast = self.folder / "ballast"
        with ballast.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(self.folder).free - but)
        return ballast


@pytest.fixture
def disk(tmp_path) -> Iterator[Callable[[str], Disk]]:
    """Makes small disks."""
    with ExitStack() as stack:

        def make(size: str) -> Disk:
            folder = tmp_path / "disk"
            folder.mkdir()
            command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder]
            if not shutil.which("mount") or subprocess.run(command, capture_output=True).returncode:
                pytest.skip("mounting a small disk is not permitted here")
            stack.callback(subprocess.run, ["umount", "--lazy", folder], check=True)
            return Disk(folder)

        yield make


@pytest.fixture(scope="module")
def shard(tmp_path_factory) -> tuple[Path, dict]:
    """A shard, and what an unbroken run makes of it."""
    place = Workplace(tmp_path_factory.mktemp("unbroken"))
    place.write("a.jsonl", documents(COUNT))
    place.run()
    return place.shards, place.points()


@contextmanager
def held_up(process: subprocess.Popen[str]) -> Iterator[None]:
    """Hold up a run and its workers."""
    main = psutil.Process(process.pid)
    main.suspend()  # it starts no more of them
    family = [*main.children(), main]
    for one in family:
        one.suspend()
    yield
    for one in family:
        one.resume()


def failed(ended: Ended) -> str:
    """The one message of a run that failed."""
    assert ended.code == 1
    assert ended.report["status"] == "failed"
    [error] = ended.errors
    return error


def completed(place: Workplace, before: dict[str, int]) -> Ended:
    """A run that completes what was begun, and embeds nothing of it again."""
    ended = place.run()
    assert ended.documents.get("unchanged", 0) == len(before)
    assert ended.documents["indexed"] == ended.documents["read"] - len(before)
    return ended


def test_full_disk_under_the_state_file(tmp_path, disk, shard):
    small = disk("700k")
    shards, points = shard
    place = Workplace(tmp_path, source={"paths": [str(shards)]}, state=str(small.folder / "state.sqlite3"))
    error = failed(place.run(code=1))
    assert "state.sqlite3: no room on the disk; make some and run again" in error
    small.resize("100m")
    completed(place, place.recorded())
    assert same_points(points, place.points())


@pytest.mark.parametrize("size", ["4k", "12k", "24k"])
def test_no_room_for_a_state_file(disk, size):
    path = disk(size).folder / "state.sqlite3"
    with ThreadPoolExecutor(1) as thread, pytest.raises(ResourceError, match=f"{path}: no room on the disk"):
        Ledger.open(path, thread)


def test_full_disk_from_the_beginning(tmp_path, disk):
    small = disk("100m")
    place = Workplace(tmp_path, state=str(small.folder / "state.sqlite3"))
    place.write("a.jsonl", documents(20))
    ballast = small.fill()
    error = failed(place.run(code=1))
    assert error == f"error: state {place.state}: no room on the disk; make some and run again"
    ballast.unlink()
    assert place.run().documents == {"read": 20, "indexed": 20}


async def test_full_disk_under_the_chunks_of_a_dry_run():
    payload = b'{"document": "d", "chunk": 0, "chunks": 1, "text": "t"}'
    points = Points(np.zeros(1, np.int64), as_ids(bytes(16)), [payload])
    block = ChunkBlock(0, "a", np.zeros(1, np.int32), np.array([0, 1]), points)

    async def blocks():
        yield block

    with pytest.raises(OSError, match="No space left") as caught:
        async for _ in write_chunks(blocks(), file=Path("/dev/full"), written=set()):
            pass
    assert in_words(caught.value) == "/dev/full: no room on the disk; make some and run again"


def test_full_disk_under_the_manifest():
    with pytest.raises(ResourceError, match="q: no room on the disk"), engine_errors(Path("q")):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    "megabytes", [5, pytest.param(1, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.slow)]
)
def test_full_disk_under_the_engine(tmp_path, disk, shard, megabytes):
    """Its files are mapped, so that a write without room ends the process that writes (SIGBUS)."""
    small = disk("200m")
    shards, points = shard
    place = Workplace(tmp_path, source={"paths": [str(shards)]}, qdrant={"path": str(small.folder / "q")})
    process = place.start_run()
    eventually((small.folder / "q" / "things").exists)
    with held_up(process):
        ballast = small.fill(but=megabytes << 20)
    error = failed(place.end(process))
    assert str(small.folder) in error
    assert "make room" in error or "make some" in error
    ballast.unlink()
    completed(place, place.recorded())
    assert same_points(points, place.points())


def test_full_disk_under_the_report(tmp_path, disk):
    small = disk("64k")
    report = small.folder / "report.json"
    place = Workplace(tmp_path)
    place.write("a.jsonl", documents(20))
    report.write_text("the report of an earlier run")
    ballast = small.fill()
    ended = place.run("--report", str(report), code=1)
    [error] = ended.errors
    assert error == f"error: --report {report}: no room on the disk; make some and run again"
    assert len(place.recorded()) == 20
    assert {path.name for path in small.folder.iterdir()} == {"report.json", "ballast"}
    assert report.read_text() == "the report of an earlier run"
    ballast.unlink()
    place.run("--report", str(report))
    assert json.loads(report.read_text())["documents"]["unchanged"] == 20


IN_LITTLE_SHARED_MEMORY = 'mount -t tmpfs -o size=64k tmpfs /dev/shm && exec "$@"'


def test_full_shared_memory(tmp_path):
    place = Workplace(tmp_path)
    place.write("a.jsonl", documents(20))
    place.prefix = ("unshare", "--mount", "sh", "-c", IN_LITTLE_SHARED_MEMORY, "--")
    needs("unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/dev/shm")
    error = failed(place.run(code=1))
    assert "/dev/shm: the buffers need" in error
    assert "--shm-size" in error
    place.prefix = ()
    assert place.run().documents == {"read": 20, "indexed": 20}


def needs(*command: str) -> None:
    """Skip the test where a command is not to be had, or not permitted."""
    if not shutil.which(command[0]) or subprocess.run(command, capture_output=True).returncode:
        pytest.skip(f"not possible here: {' '.join(command)}")


@pytest.mark.parametrize(
    "files", [24, *(pytest.param(most, marks=pytest.mark.slow) for most in (10, 16, 28))]
)
def test_too_many_open_files(tmp_path, files):
    """Wherever they run out, the run says so and ends; the state file says it in its own words."""
    needs("prlimit", "--version")
    place = Workplace(tmp_path)
    for number in range(12):
        place.write(f"{number}.jsonl", documents(20, start=20 * number))
    place.prefix = ("prlimit", f"--nofile={files}")
    ended = place.run(code=1)
    [error] = ended.errors
    assert "too many open files" in error or "unable to open database file" in error
    place.prefix = ()
    assert place.run().documents["read"] == 240
    assert len(place.points()) == 240
