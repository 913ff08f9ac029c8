"""Which spans are kept for the page about a run, and how many."""

from __future__ import annotations

import itertools
import time

import pytest

from ingestor.watching.timeline import BATCHES, SPANS_KEPT, Timeline


@pytest.fixture
def clock(monkeypatch):
    """A nanosecond passes whenever somebody looks."""
    ticks = itertools.count(1_000)
    monkeypatch.setattr(time, "time_ns", lambda: next(ticks))
    return ticks


def after(batches: int) -> Timeline:
    made = Timeline()
    for _ in range(batches):
        made.batch()
    return made


def test_before_the_first_batch_there_is_no_window():
    assert Timeline().window() is None


@pytest.mark.parametrize(
    ("batches", "first", "last"),
    [
        *((1, 1, 1), (5, 1, 5), (BATCHES, 1, BATCHES), (BATCHES + 1, 1, BATCHES)),
        *((47, 1, 24), (48, 1, 24), (71, 1, 24), (72, 48, 71), (95, 48, 71), (1_000, 768, 791)),
    ],
)
def test_the_window_lies_in_the_second_half(batches, first, last):
    window = after(batches).window()
    assert window is not None
    assert (window.first, window.last) == (first, last)
    assert last - first < BATCHES
    if batches >= 3 * BATCHES:
        assert first > batches // 2 - BATCHES


def test_a_span_is_kept_where_it_reaches_into_the_window(clock):
    timeline = Timeline()
    long, early, late = (timeline.span(name) for name in ("long", "early", "late"))
    early.begin()
    early.end()
    long.begin()
    for _ in range(BATCHES + 1):
        timeline.batch()
    late.begin()
    late.end()
    long.end()  # it began before the window and ended behind it
    window = timeline.window()
    assert window is not None
    assert [stage for stage, _, _ in window.spans] == ["long"]
    [(_, since, until)] = window.spans
    assert since < window.begin < window.end < until


def test_spans_are_bounded():
    timeline = after(1)
    for _ in range(SPANS_KEPT + 10):
        timeline.end("encode", None, 2**62)
    window = timeline.window()
    assert window is not None
    assert len(window.spans) == SPANS_KEPT
