"""`--profile`: ranges where a stage works, a trace of the batches asked for, and what it says."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ingestor.errors import ConfigError
from ingestor.watching.profiling import COLOURS, Profile
from ingestor.watching.trace import PROCESS, add_spans, busy_time, prepare_folder, window_of
from tests.fakes import stream
from tests.running import Workplace, documents


def kernel(start: float, end: float, cat: str = "kernel", name: str = "gemm") -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "ts": start, "dur": end - start}


@pytest.mark.parametrize(
    ("events", "busy", "window"),
    [
        ([], 0, 0),
        ([kernel(5, 6)], 1, 1),
        ([kernel(8, 10), kernel(0, 4), kernel(2, 3), kernel(3, 5)], 7, 10),  # side by side counts once
        ([kernel(0, 4), kernel(4, 6), kernel(0, 100, cat="cpu_op"), {"ph": "M", "name": "x"}], 6, 6),
        ([kernel(0, 1, "user_annotation", "compute"), kernel(3, 4, "user_annotation", "compute")], 2, 4),
        ([kernel(0, 9, "user_annotation", "compute"), kernel(3, 4)], 1, 1),
    ],
)
def test_busy_time(events: list[dict[str, Any]], busy: float, window: float) -> None:
    assert busy_time(events) == (busy, window)


def test_ranges_get_rows_of_their_own() -> None:
    trace: dict[str, Any] = {"baseTimeNanoseconds": 1_000_000, "traceEvents": []}
    add_spans(trace, [("compute", 1_002_000, 1_005_000)], rows=["read", "compute"])
    [span] = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert (span["pid"], span["tid"], span["ts"], span["dur"]) == (PROCESS, 1, 2.0, 3.0)


@pytest.mark.parametrize("text", ["", "5", "a,b", "5,0", "-1,5", "1,2,3"])
def test_a_window_is_two_numbers(text: str) -> None:
    assert window_of("0,7") == (0, 7)
    with pytest.raises(ConfigError, match=r"--profile-window .*: should be two numbers"):
        window_of(text)


def test_a_folder_that_cannot_be_made_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"--profile .*: Not a directory"):
        prepare_folder(tmp_path / "file" / "x")


async def test_a_range_is_open_only_while_its_stage_works(tmp_path: Path) -> None:
    profile = Profile(tmp_path, 0, 1)
    profile.recording = True
    span = profile.span("encode")
    seen: list[tuple[str, bool]] = []

    def note(where: str) -> None:
        seen.append((where, span._open is not None))

    async def source() -> AsyncIterator[int]:
        for number in range(2):
            note("asked")
            yield number

    async def stage(numbers: AsyncIterator[int]) -> AsyncGenerator[int, None]:
        async for number in numbers:
            note("works")
            yield number
            note("goes on")

    async for _ in span.stage(stage(span.source(source()))):
        note("sent")
    rounds = [("asked", False), ("works", True), ("sent", False), ("goes on", True)]
    assert seen == rounds * 2
    assert span._open is None
    assert {name for name, _, _ in profile.spans} == {"compute"}
    assert all(start <= end for _, start, end in profile.spans)


async def test_a_stage_that_fails_leaves_no_range_open(tmp_path: Path) -> None:
    profile = Profile(tmp_path, 0, 1)
    span = profile.span("pack")

    async def stage(numbers: AsyncIterator[int]) -> AsyncGenerator[int, None]:
        async for number in numbers:
            yield 1 // number

    with pytest.raises(ZeroDivisionError):
        async for _ in span.stage(stage(span.source(stream([1, 0])))):
            pass
    assert span._open is None


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    made = Workplace(tmp_path_factory.mktemp("profiled"), encoder={"token_budget": 512})
    made.write("a.jsonl", documents(300))
    return made


@pytest.mark.whole
def test_a_run_with_a_trace(place: Workplace) -> None:
    ended = place.run("--profile", "traces/first", "--profile-window", "2,3")
    assert ended.documents == {"read": 300, "indexed": 300}
    [line] = [line for line in ended.err.splitlines() if "profile" in line]
    assert "batches=3" in line
    assert "encoder_busy=" in line
    events = json.loads((place.folder / "traces/first/trace.json").read_bytes())["traceEvents"]
    named = [event for event in events if event["ph"] == "X" and event["name"] in COLOURS]
    assert [event["name"] for event in named if event["cat"] == "user_annotation"].count("compute") == 3
    computing = [event for event in named if event["cat"] == "stage" and event["name"] == "compute"]
    first = next(event for event in named if event["cat"] == "user_annotation" and event["name"] == "compute")
    assert any(
        event["ts"] - 1000 <= first["ts"] <= event["ts"] + event["dur"] for event in computing
    )  # both clocks are the same
    assert [event for event in events if event.get("cat") == "cpu_op"]


@pytest.mark.whole
def test_a_run_that_is_too_short_for_its_window_says_so(place: Workplace) -> None:
    ended = place.run("--full", "--profile", "traces/second", "--profile-window", "5000,1")
    [line] = [line for line in ended.err.splitlines() if "profile" in line]
    assert "warning" in line
    assert "had only" in line


def test_a_dry_run_has_nothing_to_trace(place: Workplace) -> None:
    ended = place.run("--dry-run", "--profile", "traces/third", code=2)
    assert "--profile" in ended.errors[0]
