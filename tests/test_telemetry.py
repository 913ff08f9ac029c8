"""The progress line and the log."""

import asyncio
import json

import pytest

from ingestor import telemetry
from ingestor.telemetry import Progress, Rates, describe, show_progress


def test_line_says_where_it_is():
    progress = Progress(
        documents=12_345, shards_done=2, shards_total=40, bottleneck="encode", note="deleting"
    )
    line = describe(progress, Rates(progress))
    assert line.startswith("shard 2/40  12,345 documents  0.0 documents/s")
    assert line.endswith("bottleneck: encode  deleting")


def test_rates_are_of_the_last_seconds(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(telemetry.time, "perf_counter", lambda: now[0])
    progress = Progress()
    rates = Rates(progress)
    for _ in range(10):
        now[0] += 10
        progress.documents += 50
        progress.tokens += 1_000
        assert rates.now() == pytest.approx((5, 100, 0))
    now[0] += 2 * telemetry.WINDOW_S
    rates.now()
    now[0] += 10
    assert rates.now() == pytest.approx((0, 0, 0))


@pytest.mark.parametrize("log_format", ["text", "json"])
async def test_line_now_and_then(monkeypatch, capsys, log_format):
    monkeypatch.setattr(telemetry, "PLAIN_INTERVAL_S", 0.001)
    telemetry.configure_logging(log_format)
    told = asyncio.Event()
    progress = Progress(documents=7)
    monkeypatch.setattr(telemetry, "describe", lambda *_: told.set() or "seven")
    async with asyncio.timeout(10):
        with show_progress(progress, enabled=True, log_format=log_format):
            await told.wait()
    first = capsys.readouterr().err.splitlines()[0]
    assert (json.loads(first)["text"] if log_format == "json" else first) == "seven"


async def test_no_line_when_not_wanted(monkeypatch, capsys):
    monkeypatch.setattr(telemetry, "repeat", None)
    with show_progress(Progress(), enabled=False):
        await asyncio.sleep(0)
    assert capsys.readouterr().err == ""
