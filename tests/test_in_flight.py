"""The bound on requests under way, against servers that are a formula."""

from __future__ import annotations

import random

import pytest

from ingestor.sink.in_flight import FIRST, LEAST, MOST, WINDOW, InFlight

MIB = 1 << 20


SLOT = 20
"""Requests after which nothing is under way, as at the end of a slot."""


def serve(in_flight: InFlight, answers: int, seconds: float, *, parallel: bool = False) -> None:
    """A server that takes so long for a request, and works on one at a time or on all of them."""
    for number in range(answers):
        under_way = min(1 + number % SLOT, in_flight.limit)
        in_flight.answered(seconds * (1 if parallel else under_way), MIB, under_way)


def test_grows_to_the_most_before_a_good_server_of_either_kind() -> None:
    for parallel in (False, True):
        in_flight = InFlight()
        assert in_flight.limit == FIRST
        serve(in_flight, 60, 0.01, parallel=parallel)
        assert in_flight.limit == MOST


def test_shrinks_when_answers_take_longer_and_comes_back() -> None:
    in_flight = InFlight()
    serve(in_flight, 60, 0.01)
    serve(in_flight, 3, 0.1)
    assert in_flight.limit == LEAST
    serve(in_flight, 100, 0.1)
    assert in_flight.limit == LEAST
    serve(in_flight, 40, 0.01)
    assert in_flight.limit == MOST


def test_a_single_late_answer_costs_little() -> None:
    in_flight = InFlight()
    serve(in_flight, 60, 0.01)
    in_flight.answered(1.0, MIB, MOST)
    assert in_flight.limit == MOST / 2
    serve(in_flight, 50, 0.01)
    assert in_flight.limit == MOST


def test_ordinary_unevenness_is_no_reason_to_shrink() -> None:
    in_flight = InFlight()
    serve(in_flight, 60, 0.01)
    for seconds in (0.01, 0.025, 0.02, 0.029) * 10:
        in_flight.answered(seconds * MOST, MIB, MOST)
    assert in_flight.limit == MOST


@pytest.mark.parametrize("parallel", [False, True], ids=["one by one", "all at once"])
def test_a_server_of_changing_moods_keeps_what_it_bears(parallel: bool) -> None:
    in_flight, dice, limits = InFlight(), random.Random(1), []
    for number in range(2000):
        under_way = min(1 + number % SLOT, in_flight.limit)
        works = 1 if parallel else under_way
        in_flight.answered(sum(dice.lognormvariate(-4, 0.5) for _ in range(works)), MIB, under_way)
        limits.append(in_flight.limit)
    assert sum(limits) / len(limits) > 0.9 * MOST


def test_larger_requests_may_take_longer() -> None:
    in_flight = InFlight()
    in_flight.answered(0.001, 10_000, 1)
    for _ in range(60):
        in_flight.answered(0.1 * in_flight.limit, MIB, in_flight.limit)
    assert in_flight.limit == MOST


def test_does_not_grow_while_fewer_are_under_way() -> None:
    in_flight = InFlight()
    for _ in range(100):
        in_flight.answered(0.01, MIB, 1)
    assert in_flight.limit == FIRST


def test_refusals_shrink_it_and_it_never_leaves_its_bounds() -> None:
    in_flight = InFlight()
    for _ in range(10):
        in_flight.shrink()
        assert LEAST <= in_flight.limit <= MOST
    assert in_flight.limit == LEAST
    serve(in_flight, 1000, 0.01)
    assert in_flight.limit == MOST


def test_a_server_that_stays_slow_is_got_used_to() -> None:
    in_flight = InFlight()
    serve(in_flight, 60, 0.01)
    serve(in_flight, WINDOW, 0.1)
    assert in_flight.limit == LEAST
    serve(in_flight, WINDOW, 0.1)
    assert in_flight.limit == MOST
