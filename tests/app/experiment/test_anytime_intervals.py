"""Intervals hold at all times at once, and shrink."""

import math
import random
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.experiment.intervals import always_valid
from app.experiment.measures import difference

RUNS, BLOCKS = 150, 30


def ever_missed(draw, truth: float, seed: int) -> bool:
    """Whether any of the intervals of a growing sequence misses the truth."""
    chance, values = random.Random(seed), []
    for _ in range(BLOCKS):
        values.append(draw(chance))
        found = always_valid(values, 0.9)
        if not found.low <= truth <= found.high:
            return True
    return False


def test_of_normal_values_no_look_misses_the_mean_more_often_than_said():
    missed = sum(ever_missed(lambda r: r.gauss(0.3, 2.0), 0.3, seed) for seed in range(RUNS))
    assert missed <= 0.1 * RUNS


def pair(chance: random.Random) -> float:
    """Two periods of a block: skewed waits, half as long again in one, in the same traffic."""
    traffic = math.exp(chance.gauss(0, 0.5))
    a, b = (fmean(chance.lognormvariate(0, 1) for _ in range(8)) for _ in range(2))
    return difference(traffic * a, 1.5 * traffic * b)


def test_of_skewed_waits_compared_within_blocks_neither():
    truth = fmean(pair(random.Random(f"truth {i}")) for i in range(20_000))
    missed = sum(ever_missed(pair, truth, seed) for seed in range(RUNS))
    assert missed <= 0.1 * RUNS


def test_a_fixed_time_interval_would_not_have_done():
    """The usual 90 % interval, looked at after each block, misses far more often."""

    def misses(seed: int) -> bool:
        chance, values = random.Random(seed), []
        for _ in range(BLOCKS):
            values.append(chance.gauss(0, 1))
            if len(values) > 1:
                mean = fmean(values)
                spread = math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1))
                if abs(mean) > 1.7 * spread / math.sqrt(len(values)):
                    return True
        return False

    assert sum(map(misses, range(RUNS))) > 0.2 * RUNS


@given(st.lists(st.floats(-2, 2), min_size=1, max_size=60), st.floats(0.6, 0.99))
def test_an_interval_holds_its_estimate_and_widens_with_the_level(values, level):
    found, surer = always_valid(values, level), always_valid(values, (1 + level) / 2)
    assert found.estimate == pytest.approx(fmean(values))
    assert surer.low <= found.low <= found.estimate <= found.high <= surer.high


def test_of_nothing_there_is_none_and_one_value_says_nothing():
    assert always_valid([], 0.95) is None
    one = always_valid([0.4], 0.95)
    assert (one.estimate, one.low, one.high) == (0.4, -math.inf, math.inf)


def test_with_more_values_it_shrinks():
    values = [random.Random(i).gauss(0, 1) for i in range(400)]
    widths = [always_valid(values[:n], 0.95) for n in (10, 40, 160, 400)]
    reaches = [each.high - each.low for each in widths]
    assert reaches == sorted(reaches, reverse=True)
    assert reaches[-1] < 0.4
