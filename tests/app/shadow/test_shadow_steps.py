"""Factors are of whole steps that follow each other, beside how slow it was at the time."""

import pytest

from app.shadow.steps import KEPT, Steps
from app.shadow.weather import CALM, Weather
from engine.batch import StepShape
from engine.cost import LinearCost
from engine.outputs import Stats
from engine.simulation.residuals import DECODE, PROMPT

COST = LinearCost(base=0.06, prompt_token=0.01, decode=0.02)
"""A tenth of a second for a step of two decodes."""

DECODES, PROMPTS = StepShape(0, 2, 100, 0), StepShape(10, 2, 100, 50)


def step(now: float, shape: StepShape | None = DECODES, *, running: int = 2) -> Stats:
    predicted = COST.of(shape) if shape else 0.1
    return Stats(now=now, running=running, step_rows=2, step_predicted=predicted, step_shape=shape)


def told(*stats: Stats) -> Steps:
    steps = Steps()
    for each in stats:
        steps.observe((), each)
    return steps


def factors(steps: Steps, cost: LinearCost = COST) -> dict[int, float]:
    weather, _ = steps.cut().beside(cost)
    return dict(weather.factors)


def test_a_step_takes_from_one_end_to_the_next():
    scatter = told(step(1.0), step(1.2), step(1.25)).cut()
    weather, residuals = scatter.beside(COST)
    assert weather.factors == {1: pytest.approx(1.25)}
    levels = residuals.quantiles[DECODE]
    assert (levels[0.0], levels[1.0]) == pytest.approx((0.5 / 1.25 - 1, 2 / 1.25 - 1))
    assert scatter.bias == {DECODE: pytest.approx(0.25)}


def test_prompts_are_of_another_kind():
    scatter = told(step(1.0), step(1.3, PROMPTS), step(1.4)).cut()
    assert scatter.bias == pytest.approx({DECODE: 0.0, PROMPT: 0.5})
    _, residuals = scatter.beside(COST)
    assert {*residuals.quantiles} == {DECODE, PROMPT}


def test_what_was_slow_is_told_beside_the_model_that_is_asked_not_the_one_at_the_time():
    steps = told(step(1.0), step(1.2), step(1.4))
    assert factors(steps, COST.times(2.0)) == {1: pytest.approx(1.0)}


def test_each_second_has_a_weather_of_its_own():
    steps = told(step(1.0), step(1.1), step(2.1, running=0), step(5.0), step(5.3))
    weather, _ = steps.cut().beside(COST)
    assert weather.factors == pytest.approx({1: 5.5, 5: 3.0})
    assert weather.at(1.5) == weather.at(2.5) == pytest.approx(5.5)
    assert weather.at(5.9) == pytest.approx(3.0)
    assert weather.at(8.0) == weather.usual == pytest.approx(14 / 3)


def test_where_nothing_is_known_it_is_calm():
    weather, residuals = told().cut().beside(COST)
    assert weather == Weather() == CALM
    assert CALM.at(3.0) == 1.0
    assert not residuals
    assert factors(told(step(1.0), step(1.2)), LinearCost()) == {}, "a model that knows nothing"


def test_behind_a_pause_nothing_is_known():
    assert factors(told(step(1.0, running=0), step(9.0), step(9.1))) == {9: pytest.approx(1.0)}


@pytest.mark.parametrize("other", [Stats(now=1.05, running=2), None])
def test_mail_and_steps_that_moved_blocks_say_nothing(other):
    between = other or step(1.05, None)
    steps = told(step(1.0), between, step(1.1))
    assert factors(steps) == {1: pytest.approx(1.0 if other else 0.5)}


def test_the_window_before_is_remembered_and_the_bias_begins_anew():
    steps = told(step(1.0), step(1.2))
    assert steps.cut().bias == {DECODE: pytest.approx(1.0)}
    for now in (2.0, 2.1):
        steps.observe((), step(now))
    scatter = steps.cut()
    assert [*scatter.slots] == [1, 2]
    assert scatter.bias == {DECODE: pytest.approx(3.5)}
    scatter = steps.cut()
    assert scatter.bias == {}
    assert [*scatter.slots] == [2], "the other one is too long ago"


def test_only_so_many_are_kept_one_by_one():
    scatter = told(*(step(1.0 + 0.1 * i) for i in range(KEPT + 100))).cut()
    assert len(scatter.steps[DECODE]) == KEPT
    assert sum(sums.steps for sums in scatter.slots.values()) == KEPT + 99
