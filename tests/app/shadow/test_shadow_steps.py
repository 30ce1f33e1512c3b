"""Factors are of whole steps that follow each other, by kind."""

import pytest

from app.shadow.steps import KEPT, Steps
from engine.outputs import Stats
from engine.simulation.residuals import DECODE, PROMPT


def step(now: float, predicted: float = 0.1, *, tokens: int = 2, running: int = 2) -> Stats:
    return Stats(
        now=now,
        running=running,
        step_tokens=tokens,
        step_rows=2,
        step_seconds=0.05,
        step_predicted=predicted,
    )


def told(*stats: Stats) -> Steps:
    steps = Steps()
    for each in stats:
        steps.observe((), each)
    return steps


def test_a_factor_is_from_one_end_to_the_next_over_what_was_predicted():
    scatter = told(step(1.0), step(1.2), step(1.25)).cut()
    assert scatter.factors[DECODE] == pytest.approx((2.0, 0.5))
    assert scatter.bias == pytest.approx(0.25)


def test_prompts_are_of_another_kind():
    scatter = told(step(1.0), step(1.3, tokens=40)).cut()
    assert scatter.factors == {DECODE: (), PROMPT: pytest.approx((3.0,))}


def test_behind_a_pause_nothing_is_known():
    scatter = told(step(1.0, running=0), step(9.0), step(9.1)).cut()
    assert scatter.factors[DECODE] == pytest.approx((1.0,))


def test_mail_alone_says_nothing():
    mail = Stats(now=1.05, running=2)
    assert told(step(1.0), mail, step(1.1)).cut().factors[DECODE] == pytest.approx((1.0,))


def test_factors_stay_for_the_next_window_and_the_bias_begins_anew():
    steps = told(step(1.0), step(1.2))
    assert steps.cut().bias == pytest.approx(1.0)
    assert steps.cut().bias is None
    steps.observe((), step(1.3))
    scatter = steps.cut()
    assert scatter.factors[DECODE] == pytest.approx((2.0, 1.0))
    assert scatter.bias == pytest.approx(0.0)


def test_only_so_many_are_kept():
    scatter = told(*(step(1.0 + 0.1 * i) for i in range(KEPT + 100))).cut()
    assert len(scatter.factors[DECODE]) == KEPT


def test_residuals_are_quantiles_of_both_kinds():
    residuals = told(step(1.0), step(1.2), step(1.4), step(1.45)).cut().residuals()
    assert [*residuals.quantiles] == [DECODE]
    assert residuals.quantiles[DECODE][0.5] == pytest.approx(1.0)
    assert not told().cut().residuals()
