"""Verdicts: which way is better, and corrections for looking at many metrics."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.ab.power import FEWEST, LONGER, seeds_needed
from loadtest.ab.verdicts import Better, Verdict, benjamini_hochberg, holm, verdict

PS = st.lists(st.floats(0, 1), min_size=1, max_size=30)


def test_lower_latency_and_higher_throughput_are_better() -> None:
    assert verdict(-0.1, True, Better.LOWER) is Verdict.BETTER
    assert verdict(0.1, True, Better.LOWER) is Verdict.WORSE
    assert verdict(0.1, True, Better.HIGHER) is Verdict.BETTER
    assert verdict(-0.1, False, Better.LOWER) is Verdict.NO_DIFFERENCE
    assert verdict(0.0, True, Better.LOWER) is Verdict.NO_DIFFERENCE


def test_holm_goes_down_from_the_smallest_until_one_is_too_large() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == [True, False, False, True]
    assert holm([0.05]) == [True]
    assert holm([0.02, 0.05]) == [True, True]
    assert holm([]) == []


def test_benjamini_and_hochberg_show_all_up_to_the_last_that_is_small_enough() -> None:
    assert benjamini_hochberg([0.01, 0.02, 0.03, 0.9]) == [True, True, True, False]
    assert benjamini_hochberg([0.04, 0.04]) == [True, True]
    assert benjamini_hochberg([0.06, 0.9]) == [False, False]


@given(PS)
def test_holm_shows_no_more_than_benjamini_and_hochberg_nor_than_no_correction(
    ps: list[float],
) -> None:
    strict, lenient = holm(ps), benjamini_hochberg(ps)
    for p, first, second in zip(ps, strict, lenient, strict=True):
        assert second or not first
        assert p <= 0.05 or not second


def test_seeds_for_a_difference_are_those_of_the_paired_t_test_and_some_more() -> None:
    """Textbook: one standard deviation takes 10 pairs, half of it 34, a third 73 (5% and 80%)."""
    assert seeds_needed(LONGER**-0.5, 1.0) == FEWEST
    assert seeds_needed(0.1 * LONGER**-0.5, 0.05) == pytest.approx(34, abs=1)
    assert seeds_needed(0.15 * LONGER**-0.5, 0.05) == pytest.approx(73, abs=1)
    assert seeds_needed(0.0, 0.05) == FEWEST
    assert seeds_needed(0.1, 0.0) is None
    assert seeds_needed(1.0, 1e-4) is None


@given(st.floats(1e-6, 1e3), st.floats(1e-6, 1e3))
def test_smaller_effects_take_more_seeds(spread: float, effect: float) -> None:
    few, many = seeds_needed(spread, 2 * effect), seeds_needed(spread, effect)
    assert many is None or (few is not None and few <= many)
