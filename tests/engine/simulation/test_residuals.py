"""Residuals: what is drawn has the quantiles that were measured, and lasts as long."""

from __future__ import annotations

import statistics

import pytest

from engine.batch import StepShape
from engine.simulation.residuals import (
    ALL,
    DECODE,
    LEVELS,
    PROMPT,
    Persistence,
    Residuals,
    Weather,
    quantiles,
)

ONE_DECODE = StepShape(0, 1, 10, 0)
A_PROMPT = StepShape(64, 1, 74, 64 * 64)
MEASURED = {0.0: -0.5, 0.25: -0.1, 0.5: 0.0, 0.75: 0.2, 1.0: 1.0}


def factors(residuals: Residuals, shape: StepShape = ONE_DECODE, seed: int = 0) -> list[float]:
    noise = residuals.noise(seed)
    return [noise(shape, 0.05 * n) for n in range(20_000)]


@pytest.mark.parametrize("share", [0.0, 0.6])
def test_factors_have_the_quantiles_that_were_measured(share: float) -> None:
    drawn = factors(Residuals({ALL: MEASURED}, Persistence(share, 0.5)))
    for level, residual in MEASURED.items():
        place = min(int(level * len(drawn)), len(drawn) - 1)
        assert sorted(drawn)[place] == pytest.approx(1 + residual, abs=0.04)


def test_kinds_of_steps_scatter_each_in_their_way() -> None:
    residuals = Residuals({DECODE: {0.5: 0.25}, PROMPT: {0.5: -0.25}})
    noise = residuals.noise(0)
    assert (noise(ONE_DECODE, 0.0), noise(A_PROMPT, 0.0)) == (1.25, 0.75)


def test_a_kind_that_nobody_measured_scatters_as_the_other_does() -> None:
    assert set(factors(Residuals({PROMPT: {0.5: 0.5}}))) == {1.5}


def test_what_lasts_is_alike_for_a_while_and_not_for_ever() -> None:
    lasting = factors(Residuals({ALL: MEASURED}, Persistence(0.9, 1.0)))
    passing = factors(Residuals({ALL: MEASURED}))

    def alike(values: list[float], lag: int) -> float:
        return statistics.correlation(values[:-lag], values[lag:])

    assert alike(lasting, 1) > 0.7  # 50 ms
    assert abs(alike(lasting, 200)) < 0.15  # 10 s
    assert abs(alike(passing, 1)) < 0.05


def test_weather_is_a_standard_normal_process_of_the_time_alone() -> None:
    weather = Weather("3", 1.0)
    values = [weather(float(n)) for n in range(4_000)]
    assert statistics.mean(values) == pytest.approx(0, abs=0.1)
    assert statistics.stdev(values) == pytest.approx(1, abs=0.1)
    again = Weather("3", 1.0)
    assert [again(float(n)) for n in range(0, 4_000, 7)] == values[::7]


def test_the_same_seed_gives_the_same_factors_and_another_one_others() -> None:
    residuals = Residuals({ALL: MEASURED}, Persistence(0.5, 0.3))
    assert factors(residuals) == factors(residuals)
    assert factors(residuals) != factors(residuals, seed=1)


def test_quantiles_are_interpolated_at_all_levels() -> None:
    found = quantiles(n / 100 for n in range(101))
    assert tuple(found) == LEVELS
    assert found[0.5] == 0.5
    assert found[0.995] == 0.995
    assert quantiles([]) == {}


@pytest.mark.parametrize(
    "levels", [{0.5: 0.1, 0.9: 0.0}, {0.9: 0.0, 0.5: 0.1}, {0.5: -1.0}, {1.5: 0.0}]
)
def test_what_are_no_quantiles_is_refused(levels: dict[float, float]) -> None:
    with pytest.raises(ValueError):
        Residuals({ALL: levels})
