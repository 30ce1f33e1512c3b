"""Noise that arms have in common, and that no arm can choose."""

from __future__ import annotations

import random

import numpy as np
import pytest

from loadtest.ab.noise import CommonNoise, log_normal


def uniform(chance: random.Random) -> float:
    return chance.random()


def after(noise: CommonNoise, steps: list[int]) -> list[list[float]]:
    """Factors of so many steps before the first arrival, after it, after the second, …"""
    factors = []
    for count in steps:
        factors.append([noise() for _ in range(count)])
        noise.arrived()
    return factors


def test_the_same_seed_gives_the_same_factors() -> None:
    steps = [3, 0, 2]
    assert after(CommonNoise(uniform, "0"), steps) == after(CommonNoise(uniform, "0"), steps)
    assert after(CommonNoise(uniform, "0"), steps) != after(CommonNoise(uniform, "1"), steps)


def test_arms_that_take_other_steps_are_in_step_again_after_an_arrival() -> None:
    many, few = (after(CommonNoise(uniform, "0"), steps) for steps in ([5, 4, 3], [2, 0, 6]))
    assert many[0][:2] == few[0]
    assert many[2] == few[2][:3]


def test_no_factor_is_used_twice_in_a_run() -> None:
    factors = [f for each in after(CommonNoise(uniform, "0"), [40] * 50) for f in each]
    assert len(set(factors)) == len(factors)


def test_factors_are_independent_draws_whatever_an_arm_does() -> None:
    """Who takes more steps where they were slow gets no other mean: of the first factors after
    each arrival, of all, and of those that follow a slow one."""
    noise, factors, following = CommonNoise(log_normal(0.3), "0"), [], []
    for _ in range(4000):
        latest = noise()
        factors.append(latest)
        while latest > 1.0:
            latest = noise()
            following.append(latest)
        noise.arrived()
    for kept in (factors, following):
        error = 0.31 / len(kept) ** 0.5
        assert np.mean(kept) == pytest.approx(1.0, abs=4 * error)
