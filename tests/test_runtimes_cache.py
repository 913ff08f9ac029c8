"""What is kept is made once and whole, whoever else is at it and however a run ended."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from ingestor.encoding.runtimes.cache import ABOUT, keep
from ingestor.errors import LockedError, ResourceError
from ingestor.lock import Lock

KEY = {"model": "m", "version": 1}


class Maker:
    """Writes a file, and counts how often it was asked to."""

    def __init__(self) -> None:
        self.asked = 0

    async def make(self, place: Path) -> None:
        self.asked += 1
        assert not os.listdir(place)
        (place / "half").write_text("a")
        await asyncio.sleep(0)  # let another one in, if it can
        (place / "half").write_text("ab")


def never() -> bool:
    return False


async def test_it_is_made_once(tmp_path: Path) -> None:
    maker = Maker()
    place = await keep(tmp_path / "kept", "kind", KEY, maker.make, give_up=never)
    assert (
        await keep(tmp_path / "kept", "kind", dict(reversed(KEY.items())), maker.make, give_up=never) == place
    )
    assert maker.asked == 1
    assert (place / "half").read_text() == "ab"
    assert json.loads((place / ABOUT).read_text()) == KEY
    assert place.name.startswith("kind-")


async def test_another_key_is_another_place(tmp_path: Path) -> None:
    maker = Maker()
    places = {
        await keep(tmp_path, kind, {**KEY, "version": version}, maker.make, give_up=never)
        for kind in ("a", "b")
        for version in (1, 2)
    }
    assert len(places) == maker.asked == 4


async def test_two_at_once_make_it_once(tmp_path: Path) -> None:
    maker = Maker()
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        both = [group.create_task(keep(tmp_path, "k", KEY, maker.make, give_up=never)) for _ in range(2)]
    assert both[0].result() == both[1].result()
    assert maker.asked == 1


async def test_what_fails_leaves_nothing_that_looks_whole(tmp_path: Path) -> None:
    async def fail(place: Path) -> None:
        (place / "half").write_text("a")
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await keep(tmp_path, "k", KEY, fail, give_up=never)
    (left,) = os.listdir(tmp_path)
    assert left.endswith(".lock")
    assert (await keep(tmp_path, "k", KEY, Maker().make, give_up=never) / "half").read_text() == "ab"


async def test_what_a_killed_run_left_is_swept_away(tmp_path: Path) -> None:
    place = await keep(tmp_path, "k", KEY, Maker().make, give_up=never)
    place.rename(place.with_suffix(".new"))
    assert await keep(tmp_path, "k", KEY, Maker().make, give_up=never) == place
    assert not place.with_suffix(".new").exists()


async def test_what_killed_runs_left_of_other_models_is_swept_away_too(tmp_path: Path) -> None:
    for name in ("k-1", "k-2"):
        (tmp_path / f"{name}.new").mkdir()
    with Lock.acquire(tmp_path / "k-2.lock"):  # this one is being made
        await keep(tmp_path, "k", KEY, Maker().make, give_up=never)
    assert [name for name in os.listdir(tmp_path) if name.endswith(".new")] == ["k-2.new"]


async def test_a_cancellation_ends_the_waiting_for_another_run(tmp_path: Path) -> None:
    place = await keep(tmp_path, "k", KEY, Maker().make, give_up=never)
    place.rename(tmp_path / "aside")
    with capture_logs() as logs, Lock.acquire(place.with_suffix(".lock")):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await keep(tmp_path, "k", KEY, Maker().make, give_up=never)
        async with asyncio.timeout(10):
            await asyncio.get_running_loop().shutdown_default_executor()  # its thread has ended, too
    assert f"held by process {os.getpid()}" in logs[0]["waiting"]


async def test_waiting_for_another_run_is_given_up(tmp_path: Path) -> None:
    place = await keep(tmp_path, "k", KEY, Maker().make, give_up=never)
    place.rename(tmp_path / "aside")
    with Lock.acquire(place.with_suffix(".lock")), pytest.raises(LockedError):
        await keep(tmp_path, "k", KEY, Maker().make, give_up=lambda: True)


async def test_a_full_disk_is_told(tmp_path: Path) -> None:
    async def full(place: Path) -> None:
        raise OSError(28, "No space left on device", str(place / "model.bin"))

    with pytest.raises(ResourceError, match=r"model\.bin: no room on the disk"):
        await keep(tmp_path, "k", KEY, full, give_up=never)
