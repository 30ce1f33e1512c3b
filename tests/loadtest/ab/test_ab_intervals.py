"""Intervals over seeds: exact where nothing scatters, and wide enough where it does."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.ab.intervals import FEWEST, Floats, estimate
from loadtest.ab.student import student_p, student_quantile

DIFFERENCES = st.lists(
    st.floats(-1e3, 1e3).map(lambda x: round(x, 3)), min_size=FEWEST, max_size=24
)


@pytest.mark.parametrize(
    ("probability", "degrees", "expected"),
    [(0.975, 9, 2.262157), (0.975, 19, 2.093024), (0.995, 19, 2.860935), (0.8, 19, 0.860951)],
)
def test_quantiles_of_student_are_those_of_the_tables(
    probability: float, degrees: int, expected: float
) -> None:
    assert student_quantile(probability, degrees) == pytest.approx(expected, rel=1e-3)
    assert student_p(expected, degrees) == pytest.approx(2 * (1 - probability), rel=2e-2)


def test_a_value_beyond_all_tables_has_nearly_no_probability() -> None:
    assert 0 < student_p(1e6, 19) < 1e-9
    assert student_p(0.0, 19) == pytest.approx(1.0)


def test_equal_differences_have_an_interval_without_width() -> None:
    none, some = estimate(np.zeros(20)), estimate(np.full(20, 0.1))
    assert (none.mean, none.low, none.high, none.p) == (0, 0, 0, 1)
    assert some.low == some.mean == some.high == pytest.approx(0.1)
    assert some.p < 1e-5


def test_too_few_differences_have_no_interval() -> None:
    few = estimate(np.arange(FEWEST - 1.0))
    assert (few.low, few.high, few.p, few.mean) == (None, None, 1.0, 1.5)
    assert math.isnan(estimate(np.empty(0)).mean)


@given(DIFFERENCES)
def test_an_interval_leaves_zero_out_exactly_where_p_is_below_five_percent(
    differences: list[float],
) -> None:
    found = estimate(np.array(differences))
    assert found.low is not None
    assert found.high is not None
    assert found.low <= found.mean <= found.high
    if abs(found.p - 0.05) > 1e-6:
        assert (found.low > 0 or found.high < 0) == (found.p < 0.05)


@given(DIFFERENCES)
def test_an_interval_of_the_opposite_is_never_shorter_than_student_s(
    differences: list[float],
) -> None:
    values = np.array(differences)
    found, n = estimate(values), len(values)
    assert found.low is not None
    assert found.high is not None
    least = student_quantile(0.975, n - 1) * found.spread / math.sqrt(n)
    assert min(found.mean - found.low, found.high - found.mean) >= least * (1 - 1e-9)


def test_the_interval_reaches_further_towards_the_long_tail() -> None:
    values = np.random.default_rng(3).lognormal(size=20)
    found = estimate(values)
    assert found.low is not None
    assert found.high is not None
    assert found.high - found.mean > 1.3 * (found.mean - found.low)


def test_two_seeds_that_differ_among_twenty_show_nothing() -> None:
    found = estimate(np.array([0.0] * 18 + [1.0, 1.0]))
    assert found.low is not None
    assert found.low < 0
    assert found.high == math.inf
    assert found.p > 0.05


@pytest.mark.parametrize(
    ("draw", "truth"),
    [
        (lambda chance: chance.normal(1, 1, 20), 1.0),
        (lambda chance: chance.exponential(1, 20), 1.0),
        (lambda chance: chance.lognormal(0, 0.5, 20), math.exp(0.5**2 / 2)),
    ],
    ids=["normal", "exponential", "log-normal"],
)
def test_it_covers_the_truth_as_often_as_it_says(
    draw: Callable[[np.random.Generator], Floats], truth: float
) -> None:
    chance = np.random.default_rng(7)
    found = [estimate(draw(chance)) for _ in range(400)]
    covered = sum(
        e.low <= truth <= e.high for e in found if e.low is not None and e.high is not None
    )
    assert covered >= 0.93 * len(found)
