"""How a run is going, in words."""

from __future__ import annotations

import pytest

from ingestor.watching import words
from ingestor.watching.progress import Progress


@pytest.mark.parametrize(
    ("number", "said"),
    [
        *((0, "0"), (0.04, "0.0"), (9.94, "9.9"), (10, "10"), (9_999, "9,999")),
        *((12_345, "12.3 k"), (999_499, "999 k"), (1_204_000, "1.2 M"), (98.7e9, "98.7 G")),
    ],
)
def test_numbers_are_short(number, said):
    assert words.short(number) == said


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        *((0.4, "0 s"), (59, "59 s"), (60, "1 min"), (3_540, "59 min"), (3_580, "1 h 00 min")),
        *((3_600 * 47 + 1_800, "47 h 30 min"), (3_600 * 50, "2 d 2 h")),
    ],
)
def test_times_are_as_exact_as_one_wants_to_know(seconds, said):
    assert words.duration(seconds) == said


def test_only_what_is_out_of_the_ordinary_is_told():
    progress = Progress()
    assert list(words.troubles(progress)) == []
    progress.tally.failed = 1
    progress.tally.shard_errors.append(("a.gz", "truncated_input", ""))
    progress.waited = lambda: {"rate_limited": (3, 4.5)}
    progress.note = "opening the collection"
    assert list(words.troubles(progress)) == [
        *("1 failed", "1 shard errors", "rate limited 3 x, 4 s in all", "opening the collection")
    ]


def test_that_nothing_moves_is_told(monkeypatch):
    progress = Progress()
    now = words.STILL_S + __import__("time").perf_counter() + 80
    monkeypatch.setattr("time.perf_counter", lambda: now)
    assert list(words.troubles(progress)) == ["nothing has moved for 2 min"]
    with progress.doing("loading the model"):
        assert list(words.troubles(progress)) == ["loading the model"]
    assert list(words.troubles(progress)) == []  # what comes after it begins only now
