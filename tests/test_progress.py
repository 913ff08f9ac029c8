"""How a run is going: shares, rates, the time left, the bottleneck; and the bound on what is remembered."""

from __future__ import annotations

import asyncio
import itertools
import time

import pytest

from ingestor.channel import Channel
from ingestor.watching.history import LEFT_S, History, Sample
from ingestor.watching.progress import Progress, Stages


@pytest.fixture
def clock(monkeypatch):
    """The time, as the run sees it; put on by the test."""
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    return now


def a_sample(at_s: float) -> Sample:
    return Sample(at_s, 0, 0, 0, 0, 0.0, {}, {})


def test_rates_are_of_the_last_half_minute(clock):
    progress = Progress()
    progress.sample()
    assert progress.rates()["documents"] == 0
    for _ in range(60):
        clock[0] += 1
        progress.tally.indexed += 50
        progress.tally.tokens += 1_000
        progress.sample()
        assert progress.rates() == pytest.approx({"documents": 50, "tokens": 1000, "chunks": 0, "points": 0})
    for _ in range(30):
        clock[0] += 1
        progress.sample()
    assert progress.rates()["documents"] == 0


def test_done_waits_for_the_encoder():
    progress = Progress(bytes_total=1_000)
    assert progress.done == 0
    progress.tally.taken, progress.tally.tokens_found = 500, 8_000
    assert progress.done == 0  # all of it still lies before the encoder
    progress.tally.tokens = 2_000
    assert progress.done == pytest.approx(0.125)
    progress.tally.taken, progress.tally.tokens = 1_000, 8_000
    assert progress.done == 1


def test_done_when_only_some_documents_are_wanted():
    progress = Progress(bytes_total=1_000_000, limit=200, passed=5_000)
    progress.tally.read, progress.tally.taken = 5_050, 100
    assert progress.done == pytest.approx(0.25)
    progress.tally.read = 5_200
    assert progress.done == 1


def test_done_where_nothing_is_new():
    progress = Progress(bytes_total=1_000)
    progress.tally.taken = 250  # all unchanged so far: no tokens
    assert progress.done == pytest.approx(0.25)


def test_the_time_left_is_told_once_something_is_done(clock):
    progress = Progress(bytes_total=100_000)
    progress.sample()
    assert progress.left_s() is None
    for _ in range(100):
        clock[0] += 1
        progress.tally.taken += 100
        progress.sample()
    assert progress.left_s() == pytest.approx(900)
    for _ in range(round(LEFT_S) + 1):  # now nothing moves
        clock[0] += 1
        progress.sample()
    assert progress.left_s() is None
    assert progress.still_s == pytest.approx(LEFT_S + 1)


def test_a_long_run_keeps_a_bounded_number_of_even_samples():
    history = History(most=100)
    for second in range(100_000):
        history.add(a_sample(float(second)))
    whole = history.whole()
    assert 50 <= len(whole) <= 101
    assert (whole[0].at_s, whole[-1].at_s) == (0, 99_999)
    gaps = {after.at_s - before.at_s for before, after in itertools.pairwise(whole[:-1])}
    assert len(gaps) == 1
    assert len(history.recent) <= LEFT_S + 1


def test_the_last_sample_is_told_once():
    history = History()
    assert history.whole() == []
    history.add(a_sample(0.0))
    assert len(history.whole()) == 1


async def test_stages_add_up_over_passes_and_while_they_run():
    stages, channel = Stages(), Channel[int](2)
    stages.begin("read", None, channel)
    stages.begin("pack", channel, None)
    waiting = asyncio.create_task(anext(channel))
    await asyncio.sleep(0.02)
    assert stages.times()["pack"].waiting_for_input_s >= 0.02  # it still waits
    await channel.send(7)
    await waiting
    await channel.send(8)
    assert stages.fills() == {"pack": (1, 2)}
    stages.end("read")
    first = stages.times()["read"].busy_s
    stages.begin("read", None, channel)
    await asyncio.sleep(0.01)
    assert list(stages.times()) == ["read", "pack"]
    assert stages.times()["read"].busy_s >= first + 0.01


async def test_the_bottleneck_is_what_was_busy_of_late(clock):
    progress, channel = Progress(), Channel[int](2)
    assert progress.bottleneck() == ""
    progress.stages.begin("read", None, channel)
    progress.stages.begin("upsert", channel, None)
    progress.sample()
    waiting = asyncio.create_task(anext(channel))
    await asyncio.sleep(0)
    clock[0] += 10
    progress.sample()
    assert progress.bottleneck() == "read"
    assert progress.busy() == pytest.approx({"read": 1, "upsert": 0})
    await channel.send(1)
    await waiting
    progress.stages.end("read")
    for _ in range(40):
        clock[0] += 1
        progress.sample()
    assert progress.bottleneck() == "upsert"


def test_what_is_going_on_is_said_as_long_as_it_does():
    progress = Progress()
    with progress.doing("loading the model"):
        assert progress.note == "loading the model"
        with progress.doing("measuring"):
            pass
        assert progress.note == "loading the model"
    assert progress.note == ""
    with progress.doing("loading the model"):
        progress.note = "stopping"
    assert progress.note == "stopping"
