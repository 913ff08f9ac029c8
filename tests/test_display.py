"""What people see of a run while it goes on: at any width, with and without colours, for programs, too."""

from __future__ import annotations

import asyncio
import fcntl
import io
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import time

import pytest
from rich.cells import cell_len
from rich.console import Console

from ingestor import telemetry
from ingestor.channel import Channel
from ingestor.watching import display, words
from ingestor.watching.display import Screen, show
from ingestor.watching.progress import Progress
from tests.running import Workplace, documents

LARGEST = 987_654_321_012


@pytest.fixture
def progress(monkeypatch):
    """A run of some hours, in the middle of it, with large numbers and long names."""
    made = Progress(shards_total=50, bytes_total=1_000)
    made.report.collection, made.report.target = "wiki", "https://qdrant-7.search.internal.example.org:6333"
    channel = Channel[int](2)
    for name in ("read", "prepare", "pack", "prefetch", "encode", "copy_out", "upsert", "settle"):
        made.stages.begin(name, channel, channel)
    now = [time.perf_counter() + 4_980]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    made.sample()
    tally = made.tally
    tally.indexed, tally.chunks, tally.tokens, tally.points = 12_345_678, 24_000_000, LARGEST, 23_999_000
    tally.taken, tally.tokens_found, tally.shards_done, tally.failed = 620, LARGEST, 31, 12
    now[0] += 20
    made.sample()
    return made


def drawn(progress: Progress, width: int, *, height: int = 40, **options) -> str:
    """The live display as a terminal of this size gets it."""
    file = io.TextIOWrapper(io.BytesIO(), options.pop("encoding", "utf-8"), newline="")
    console = Console(file=file, force_terminal=True, width=width, height=height, **options)
    console.print(Screen(progress))
    file.flush()
    return file.buffer.getvalue().decode(file.encoding)


def plain(text: str) -> list[str]:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).splitlines()


@pytest.mark.parametrize("width", [40, 55, 56, 83, 84, 120, 250])
def test_no_line_is_wider_than_the_terminal(progress, width):
    lines = plain(drawn(progress, width))
    assert max(cell_len(line.rstrip()) for line in lines) <= min(width, display.WIDEST)
    said = "\n".join(lines)
    assert "wiki → https://qdrant-7" in said
    assert "62%" in said
    assert "31 of 50" in said
    assert "12 failed" in said
    assert "…" not in "".join(lines[1:])  # but the target's name nothing is cut off
    assert all(name in said for name in ("documents", "tokens", "copy_out", "settle", "queue"))
    assert (f"{LARGEST:,}" if width >= display.ROOMY else "988 G") in said


def test_each_thing_has_its_own_line_where_it_is_narrow(progress):
    lines = plain(drawn(progress, 40))
    starts = " ".join(line.split()[0] for line in lines if line.strip())
    assert "shards documents chunks tokens points stage read prepare pack prefetch encode copy_out" in starts


def test_a_low_terminal_is_not_overflown(progress):
    for width in (40, 100):
        assert len(plain(drawn(progress, width, height=14))) <= 14


def test_colours_can_be_turned_off(progress, monkeypatch):
    colour = re.compile(r"\x1b\[[0-9;]*3[0-9]m")
    assert colour.search(drawn(progress, 100, color_system="standard"))
    monkeypatch.setenv("NO_COLOR", "1")
    assert not colour.search(drawn(progress, 100, color_system="standard"))


def test_a_terminal_without_unicode(progress):
    said = drawn(progress, 100, encoding="ascii")
    assert "wiki -> https" in said
    assert "##########" not in said.splitlines()[0]


def test_before_anything_is_known():
    lines = plain(drawn(Progress(), 40))
    assert not [line for line in lines if "%" in line or "left" in line]


def test_something_that_goes_on_is_named(progress):
    progress.note = "loading the model"
    assert "12 failed, loading the model" in plain(drawn(progress, 100))[-1]


@pytest.fixture
def shown(monkeypatch):
    """Set when something was shown, which is all the time."""
    told = asyncio.Event()
    monkeypatch.setattr(display, "PLAIN_INTERVAL_S", 0.001)
    for name, make in (("line", words.line), ("fields", words.fields)):
        monkeypatch.setattr(display, name, lambda progress, make=make: told.set() or make(progress))
    return told


@pytest.mark.parametrize("log_format", ["text", "json"])
async def test_without_a_terminal_a_line_now_and_then(progress, shown, capsys, log_format):
    telemetry.configure_logging(log_format)
    async with asyncio.timeout(10):
        with show(progress, log_format=log_format):
            await shown.wait()
    said = capsys.readouterr().err
    first = said.splitlines()[0]
    assert "\x1b" not in said
    if log_format == "text":
        assert first.startswith("62%  shard 31/50  12,345,690 documents  617 k documents/s")
        assert first.endswith("12 failed")
    else:
        found = json.loads(first)
        assert (found["event"], found["done"], found["shards_done"]) == ("progress", 0.62, 31)
        assert found["documents_per_s"] == pytest.approx(617_284, abs=10)
        assert found["busy"].keys() == found["queues"].keys()


async def test_a_dumb_terminal_gets_lines(progress, shown, monkeypatch, capsys):
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    async with asyncio.timeout(10):
        with show(progress):
            await shown.wait()
    said = capsys.readouterr().err
    assert "\x1b" not in said
    assert said.startswith("62%")


@pytest.mark.slow
@pytest.mark.parametrize("columns", [40, 100])
def test_a_whole_run_on_a_terminal(tmp_path, columns):
    """What is drawn fits, goes away at the end, and leaves the last lines."""
    place = Workplace(tmp_path, encoder={"token_budget": 64}, chunk={"max_tokens": 32, "overlap_tokens": 0})
    place.write("a.jsonl", documents(1_500))
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))
    command = [sys.executable, "-m", "ingestor", "--config", "c.yaml"]
    environment = {**os.environ, "TERM": "xterm-256color"}
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdin=subprocess.DEVNULL, stderr=theirs
    )
    os.close(theirs)
    said = b"".join(iter(lambda: read_some(ours), b"")).decode()
    os.close(ours)
    assert process.wait(60) == 0
    assert "Traceback" not in said
    *drawn, last = re.split(r"\x1b\[\?25h", said)  # the cursor is shown again
    lines = [line.rstrip() for part in drawn for line in plain(part)]
    assert max(map(cell_len, lines)) <= max(columns, len("into collection things, embedded engine in qdrant"))
    frames = [frame for part in drawn for frame in part.split("total") if "documents" in frame]
    assert len(frames) >= 2
    assert "complete    collection things" in last
    assert "1,500 indexed" in last


def read_some(handle: int) -> bytes:
    """Some bytes of a terminal; none once the other end is closed."""
    try:
        return os.read(handle, 65_536)
    except OSError:
        return b""
