"""A run whose messages nobody can read any more is a run like any other."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys

import pytest

from tests.running import LIMIT_S, RUN, Workplace, documents, eventually


@pytest.fixture
def place(tmp_path) -> Workplace:
    made = Workplace(tmp_path)
    made.write("a.jsonl", documents(50))
    return made


def without_reader(kind: str) -> int:
    """The writing end of what is closed at its other end."""
    reader, writer = pty.openpty() if kind == "terminal" else os.pipe()
    os.close(reader)
    return writer


def start(place: Workplace, stderr: int, *options: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "ingestor", *RUN, *options]
    command.remove("--no-progress")
    process = subprocess.Popen(
        command, cwd=place.folder, env=place._environment() | {"TERM": "xterm"}, stderr=stderr
    )
    os.close(stderr)
    return process


@pytest.mark.whole
@pytest.mark.parametrize(("kind", "log_format"), [("terminal", "text"), ("pipe", "json")])
def test_complete(place, kind, log_format):
    process = start(place, without_reader(kind), "--log-format", log_format)
    assert process.wait(LIMIT_S) == 0
    assert (place.folder / "r.json").exists()
    assert len(place.recorded()) == 50


@pytest.mark.whole
def test_first_signal_still_stops_it(place):
    place.write("a.jsonl", documents(40_000))
    process = start(place, without_reader("pipe"))
    eventually(place.recorded)
    process.send_signal(signal.SIGTERM)
    assert process.wait(LIMIT_S) == 128 + signal.SIGTERM
