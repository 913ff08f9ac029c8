"""The choice of a token budget, with a made-up device."""

from __future__ import annotations

import numpy as np
import pytest

from ingestor.encoding.budget import SIZES, Trial, choose, made_up, sizes_from, sweep


class Bench:
    """A device that runs at given rates; its clock goes on only while it works."""

    def __init__(self, rates: dict[int, float], *, forwards: int = 4, memory: int = 1 << 62) -> None:
        self._rates, self._forwards, self._memory = rates, forwards, memory
        self.now = 0.0

    def try_out(self, budget: int) -> Trial | None:
        if budget * 100 > self._memory:
            return None
        self.now += self._forwards * budget / self._rates[budget]
        return Trial(budget, self._rates[budget], budget * 100)

    def budgets(self, least: int = 512, room: int = 1 << 62, work_tokens: float = 1e12) -> list[int]:
        trials = sweep(
            self.try_out,
            sizes=sizes_from(least),
            room=room,
            work_tokens=work_tokens,
            clock=lambda: self.now,
        )
        return [trial.budget for trial in trials]


FAST = dict(zip(SIZES, [4e6, 5.4e6, 7e6, 8.3e6, 9e6, 9.2e6], strict=True))


def test_a_fast_device_is_tried_with_all_sizes_in_time() -> None:
    bench = Bench(FAST)
    assert bench.budgets() == list(SIZES)
    assert bench.now < 3


def test_a_slow_one_is_not_kept_busy_for_long() -> None:
    bench = Bench(dict.fromkeys(SIZES, 100_000.0))
    assert bench.budgets() == [8192, 16384, 32768]
    assert bench.now < 3


def test_little_work_is_not_worth_much_trying() -> None:
    assert Bench(FAST).budgets(work_tokens=5_000) == [8192]
    assert Bench(FAST).budgets(work_tokens=10_000_000) == [8192, 16384, 32768, 65536]


def test_batches_hold_the_longest_chunk() -> None:
    assert Bench(FAST).budgets(least=20_000)[0] == 32_768
    assert Bench({1 << 20: 1e7}).budgets(least=1 << 20) == [1 << 20]


def test_memory_ends_the_sweep_before_it_is_short() -> None:
    assert Bench(FAST).budgets(room=100 * 70_000) == [8192, 16384, 32768, 65536]


def test_memory_that_runs_out_ends_it_too() -> None:
    assert Bench(FAST, memory=100 * 40_000).budgets() == [8192, 16384, 32768]
    assert Bench(FAST, memory=100).budgets() == []


@pytest.mark.parametrize(
    ("rates", "chosen"),
    [
        ([4e6, 5.4e6, 7e6, 8.3e6, 9e6, 9.2e6], SIZES[5]),
        ([1.48e6, 1.95e6, 2.05e6, 2.04e6, 2.02e6], SIZES[3]),  # within 1 % of the best
        ([1e6, 2e6, 1.5e6], SIZES[1]),
        ([1e6], SIZES[0]),
    ],
)
def test_the_largest_of_about_the_best_is_chosen(rates: list[float], chosen: int) -> None:
    trials = [Trial(size, rate, 0) for size, rate in zip(SIZES, rates, strict=False)]
    assert choose(trials).budget == chosen


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize(("budget", "max_tokens"), [(8192, 512), (262_144, 512), (8192, 64), (8192, 8192)])
def test_made_up_batches_fill_the_budget(budget: int, max_tokens: int, packed: bool) -> None:
    batch = made_up(budget, max_tokens, packed=packed)
    lengths = np.diff(batch.offsets)
    assert len(batch.points) == len(lengths)
    assert batch.offsets[-1] == len(batch.tokens)
    assert budget - max_tokens <= len(batch.tokens) <= budget
    assert lengths.max() <= max_tokens
    assert packed or len(set(lengths.tolist())) == 1
    if packed and max_tokens == 512 and budget > 100_000:
        assert 95 < lengths.mean() < 125
