"""Factors are of whole steps that follow each other, beside how slow it was at the time."""

import pytest

from app.shadow.steps import KEPT, Steps
from app.shadow.weather import CALM, Weather
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
    assert scatter.weather.factors == {1: pytest.approx(1.25)}
    assert scatter.factors[DECODE] == pytest.approx([2.0 / 1.25, 0.5 / 1.25])
    assert scatter.bias == {DECODE: pytest.approx(0.25)}


def test_prompts_are_of_another_kind():
    scatter = told(step(1.0), step(1.3, tokens=40), step(1.4)).cut()
    assert scatter.factors == {DECODE: [pytest.approx(0.5)], PROMPT: [pytest.approx(1.5)]}
    assert scatter.bias == pytest.approx({DECODE: 0.0, PROMPT: 2.0})


def test_each_second_has_a_weather_of_its_own():
    weather = told(step(1.0), step(1.1), step(2.1, running=0), step(5.0), step(5.3)).cut().weather
    assert weather.factors == pytest.approx({1: 5.5, 5: 3.0})
    assert weather.at(1.5) == weather.at(2.5) == pytest.approx(5.5)
    assert weather.at(5.9) == pytest.approx(3.0)
    assert weather.at(8.0) == weather.usual == pytest.approx(14 / 3)


def test_where_nothing_is_known_it_is_calm():
    assert told().cut().weather == Weather() == CALM
    assert CALM.at(3.0) == 1.0


def test_behind_a_pause_nothing_is_known():
    scatter = told(step(1.0, running=0), step(9.0), step(9.1)).cut()
    assert scatter.weather.factors == {9: pytest.approx(1.0)}


def test_mail_alone_says_nothing():
    mail = Stats(now=1.05, running=2)
    assert len(told(step(1.0), mail, step(1.1)).cut().factors[DECODE]) == 1


def test_the_window_before_is_remembered_and_the_bias_begins_anew():
    steps = told(step(1.0), step(1.2))
    assert steps.cut().bias == {DECODE: pytest.approx(1.0)}
    assert steps.cut().bias == {}
    steps = told(step(1.0), step(1.2))
    steps.cut()
    for now in (2.0, 2.1):
        steps.observe((), step(now))
    scatter = steps.cut()
    assert [*scatter.weather.factors] == [1, 2]
    assert scatter.bias == {DECODE: pytest.approx(3.5)}
    assert [*steps.cut().weather.factors] == [2], "the other one is too long ago"


def test_only_so_many_are_kept():
    scatter = told(*(step(1.0 + 0.1 * i) for i in range(KEPT + 100))).cut()
    assert len(scatter.factors[DECODE]) == KEPT


def test_residuals_are_quantiles_beside_the_weather():
    residuals = told(step(1.0), step(1.2), step(1.4), step(1.6)).cut().residuals()
    assert [*residuals.quantiles] == [DECODE]
    assert residuals.quantiles[DECODE][0.5] == pytest.approx(0.0)
    assert not told().cut().residuals()
