"""What follows from a failed call: how long it is waited, and when it is given up. No clock, no server."""

from __future__ import annotations

import pytest

from ingestor.errors import ResourceError, SinkError, TransientSinkError
from ingestor.sink.patience import Attempts, FullError, Patience, RateLimitedError, ServiceError, persist

DOWN = TransientSinkError("the server is down")


def test_pauses_double_up_to_a_bound_and_are_jittered() -> None:
    middle, early, late = (Attempts(Patience()) for _ in range(3))
    pauses = [middle.next_wait(DOWN, 0.0, 0.5).seconds for _ in range(10)]
    assert pauses[:4] == [0.1, 0.2, 0.4, 0.8]
    assert pauses[-1] == 10.0
    first = [
        attempts.next_wait(DOWN, 0.0, chance).seconds for attempts, chance in ((early, 0.0), (late, 1.0))
    ]
    assert first == pytest.approx([0.05, 0.15])


def test_patience_ends_with_time() -> None:
    attempts = Attempts(Patience(seconds=60))
    for now in (100.0, 130.0, 159.0):
        attempts.next_wait(DOWN, now, 0.5)
    with pytest.raises(SinkError, match="the server is down; tried 4 times in 60 s"):
        attempts.next_wait(DOWN, 160.0, 0.5)


def test_patience_ends_with_tries() -> None:
    attempts = Attempts(Patience(tries=3))
    for _ in range(2):
        attempts.next_wait(DOWN, 0.0, 0.5)
    with pytest.raises(SinkError, match="tried 3 times"):
        attempts.next_wait(DOWN, 0.0, 0.5)


def test_failures_inside_the_server_are_tried_a_few_times_only() -> None:
    attempts = Attempts(Patience(inside_tries=3))
    attempts.next_wait(ServiceError("broken"), 0.0, 0.5)
    attempts.next_wait(DOWN, 0.0, 0.5)
    attempts.next_wait(ServiceError("broken"), 0.0, 0.5)
    with pytest.raises(SinkError, match="broken; tried 4 times"):
        attempts.next_wait(ServiceError("broken"), 0.0, 0.5)


def test_what_a_rate_limit_asks_for_is_waited_and_costs_no_patience() -> None:
    attempts = Attempts(Patience(seconds=10, tries=2))
    attempts.next_wait(DOWN, 0.0, 0.5)
    now = 0.0
    for chance in (0.0, 0.5, 1.0):
        wait = attempts.next_wait(RateLimitedError("slowly", 30.0), now, chance)
        assert (wait.kind, wait.seconds) == ("rate_limited", 30.0 + chance * 0.5)
        now += wait.seconds
    assert now > 90
    with pytest.raises(SinkError, match="tried 2 times in 9 s"):
        attempts.next_wait(DOWN, now + 9.0, 0.5)


def test_a_rate_limit_has_bounds_of_its_own() -> None:
    with pytest.raises(SinkError, match=r"slowly: it asks to wait 300 s, and a run waits 120 s at most"):
        Attempts(Patience()).next_wait(RateLimitedError("slowly", 300.0), 0.0, 0.0)
    attempts = Attempts(Patience(limited_s=100))
    for _ in range(2):
        attempts.next_wait(RateLimitedError("slowly", 60.0), 0.0, 0.0)
    with pytest.raises(SinkError, match="has waited 120 s for its turn"):
        attempts.next_wait(RateLimitedError("slowly", 60.0), 0.0, 0.0)


def test_a_full_disk_is_waited_for_and_then_ends_the_run() -> None:
    attempts = Attempts(Patience(seconds=1, full_s=20, full_pause_s=5))
    waits = [attempts.next_wait(FullError("full"), 100.0 * number, 0.5) for number in range(4)]
    assert [wait.seconds for wait in waits] == [5.0] * 4
    assert "ends in 15 s" in waits[0].reason
    with pytest.raises(ResourceError, match="full; tried for 20 s, nothing is lost"):
        attempts.next_wait(FullError("full"), 400.0, 0.5)


def test_a_call_is_made_until_it_succeeds_and_its_waits_are_told() -> None:
    outcomes = [DOWN, RateLimitedError("slowly", 0.0), None]
    told = []

    def call() -> str:
        if (outcome := outcomes.pop(0)) is not None:
            raise outcome
        return "done"

    patience = Patience(first_pause_s=0.001)
    assert persist(call, patience=patience, tell=told.append) == "done"
    assert [wait and wait.kind for wait in told] == ["server_unavailable", None, "rate_limited", None]


def test_what_will_not_pass_is_not_tried_again() -> None:
    calls = []

    def call() -> None:
        calls.append(1)
        raise SinkError("no")

    with pytest.raises(SinkError, match="no"):
        persist(call, patience=Patience())
    assert len(calls) == 1
