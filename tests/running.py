"""Runs of the program as people start it: a configuration in a folder, a process of its own, its report."""

from __future__ import annotations

import asyncio
import json
import os
import random
import select
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ingestor import pipeline
from ingestor.config.settings import RunOptions, load
from ingestor.ending import root_cause
from ingestor.errors import IngestorError
from ingestor.watching.progress import Progress
from ingestor.watching.report import Report
from tests.sinks import embedded, stored
from tests.warm import WarmRun

DIMENSION = 64
LIMIT_S = 120
RUN = ("run", "--config", "c.yaml", "--report", "r.json", "--no-progress")
OURS = ("INGESTOR_", "QDRANT_", "HF_")
FAULTS = ("Traceback", "never retrieved", "Exception ignored", "Warning", "leaked", "was destroyed")
"""What nobody should ever read on stderr."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a run ended.

    Attributes:
        report: what `--report` wrote; empty where nothing was.
    """

    code: int
    report: dict[str, Any]
    out: str
    err: str

    @property
    def errors(self) -> list[str]:
        """The lines that say what went wrong."""
        return [line for line in self.err.splitlines() if line.startswith("error: ")]

    @property
    def documents(self) -> dict[str, int]:
        """The report's counts of documents, without those that are 0."""
        return {name: count for name, count in self.report["documents"].items() if count}


class Workplace:
    """A folder with shards, a configuration for them, and what runs leave there."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder = folder
        self.environment: dict[str, str] = {}  # for runs; nothing of these names is inherited
        self.prefix: tuple[str, ...] = ()  # a command that runs the command, `prlimit` for instance
        self.shards = folder / "shards"
        self.shards.mkdir(parents=True, exist_ok=True)
        self.configure(**settings)

    def configure(self, **settings: Any) -> None:
        """Write the configuration; sections given here are added to the usual ones."""
        usual: dict[str, Any] = {
            "source": {"paths": ["shards"], "metadata_fields": ["kind"]},
            "encoder": {"model": f"hash:{DIMENSION}", "device": "cpu"},
            "qdrant": {"path": "qdrant", "collection": "things"},
            "state": "state.sqlite3",
        }
        for section, values in settings.items():
            usual[section] = {**usual.get(section, {}), **values} if isinstance(values, dict) else values
        self.settings = usual
        (self.folder / "c.yaml").write_text(json.dumps(usual))  # which is YAML, too

    def write(self, shard: str, documents: Iterable[dict[str, Any]]) -> None:
        """Write a shard, one document a line."""
        (self.shards / shard).write_text("".join(json.dumps(document) + "\n" for document in documents))

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a command and leave it running."""
        (self.folder / "r.json").unlink(missing_ok=True)
        return subprocess.Popen(
            [*self.prefix, sys.executable, "-m", "ingestor", *arguments],
            cwd=self.folder,
            env=self._environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def start_run(self, *options: str) -> subprocess.Popen[str]:
        """Start a run that will write its report."""
        return self.start(*RUN, *options)

    def start_warm_run(self, *options: str) -> WarmRun:
        """The same in a tenth of the time, for tests of many runs."""
        (self.folder / "r.json").unlink(missing_ok=True)
        return WarmRun([*RUN, *options], self.folder, self._environment())

    def _environment(self) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
        return inherited | self.environment

    def end(self, process: subprocess.Popen[str] | WarmRun) -> Ended:
        """Wait for its end; neither it nor a worker may have said what nobody should read."""
        try:
            out, err = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise
        assert not [fault for fault in FAULTS if fault in err], err
        report = self.folder / "r.json"
        return Ended(process.returncode, json.loads(report.read_text()) if report.exists() else {}, out, err)

    def run(self, *options: str, code: int = 0) -> Ended:
        """Run, expecting an exit code."""
        ended = self.end(self.start_run(*options))
        assert ended.code == code, ended.err
        return ended

    def ask(self, command: str, *arguments: str, code: int = 0) -> Ended:
        """Run another command, expecting an exit code."""
        ended = self.end(self.start(command, "--config", "c.yaml", *arguments))
        assert ended.code == code, ended.err
        return ended

    @property
    def state(self) -> Path:
        return self.folder / str(self.settings["state"])

    def recorded(self) -> dict[str, int]:
        """The documents that the state file takes for stored, and their numbers of chunks."""
        if not self.state.exists():
            return {}
        with closing(sqlite3.connect(self.state, timeout=60)) as file:
            if not file.execute("SELECT 1 FROM sqlite_master WHERE name = 'records'").fetchone():
                return {}
            return dict(file.execute("SELECT id, chunks FROM records WHERE chunks > 0").fetchall())

    def points(self, collection: str = "things") -> dict[bytes, tuple[np.ndarray, dict[str, Any]]]:
        """All that the embedded collection holds, also when runs go to a server meanwhile."""
        path = self.folder / (self.settings["qdrant"]["path"] or "qdrant")
        return stored(embedded(path, collection=collection, dimension=DIMENSION))


async def run_here(
    place: Workplace, *overrides: str, stop: asyncio.Event | None = None, **options: Any
) -> Report:
    """Run in this process, whose working directory is the place's."""
    settings, progress = load(place.folder / "c.yaml", overrides, environ={}), Progress()
    async with asyncio.timeout(LIMIT_S):
        return await pipeline.run(
            settings, options=RunOptions(**options), stop=stop or asyncio.Event(), progress=progress
        )


async def failing(place: Workplace, *overrides: str, **options: Any) -> BaseException:
    """What ends a run in this process."""
    failures = []
    try:
        await run_here(place, *overrides, **options)
    except* IngestorError as group:
        failures.append(root_cause(group))
    [failure] = failures
    return failure


def documents(count: int, *, start: int = 0, words: int = 30) -> list[dict[str, Any]]:
    """Documents of some words each, the same ones every time."""
    return [
        {
            "id": f"d{number}",
            "text": f"Document {number}: "
            + " ".join(str(number * factor % 997) for factor in range(3, 3 + words)),
            "kind": "odd" if number % 2 else "even",
        }
        for number in range(start, start + count)
    ]


def same_points(
    left: dict[bytes, tuple[np.ndarray, dict[str, Any]]],
    right: dict[bytes, tuple[np.ndarray, dict[str, Any]]],
) -> bool:
    """Whether ids and payloads are equal, and vectors to 1e-5."""
    assert left.keys() == right.keys()
    assert {id_: payload for id_, (_, payload) in left.items()} == {
        id_: payload for id_, (_, payload) in right.items()
    }
    return all(np.abs(vector - right[id_][0]).max() <= 1e-5 for id_, (vector, _) in left.items())


def eventually(condition: Callable[[], Any], limit_s: float = 60) -> Any:
    """Look again and again until a condition holds, where nothing tells when it does."""
    end = time.monotonic() + limit_s
    while not (found := condition()):
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.01)
    return found


def children(pid: int) -> list[int]:
    """The processes that a process has started and that run."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(parent) == pid and state != "Z":
                found.append(int(entry.name))
    return found


def workers(pid: int) -> dict[str, int]:
    """The worker processes of a run, `sink` and `prepare`, told apart by the libraries they loaded."""
    found = {}
    for child in children(pid):
        try:
            loaded = Path(f"/proc/{child}/maps").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if any(f"/site-packages/{library}/" in loaded for library in ("qdrant_edge", "grpc")):
            found["sink"] = child
        elif "/site-packages/numpy/" in loaded:
            found["prepare"] = child
    return found


def kill_alone(process: subprocess.Popen[str] | WarmRun) -> list[int]:
    """Kill -9 a main process alone; handles of its children at that moment."""
    process.send_signal(signal.SIGSTOP)  # it starts no more of them
    handles = []
    for child in children(process.pid):
        try:
            handles.append(os.pidfd_open(child))
        except ProcessLookupError:
            continue
    process.kill()
    process.wait()
    return handles


def have_ended(handles: Iterable[int], limit_s: float = 10) -> bool:
    """Wait until processes have ended, in other words no longer run; a zombie has."""
    ended = True
    for handle in handles:
        with closing(os.fdopen(handle, "rb", buffering=0)):
            ended = bool(select.select([handle], [], [], limit_s)[0]) and ended
    return ended


def moments(count: int, *, first: float, last: float, seed: int) -> list[float]:
    """Some moments, in seconds, spread evenly but not regularly; the same ones for the same seed."""
    step, dice = (last - first) / count, random.Random(seed)
    return [first + step * (index + dice.random()) for index in range(count)]
