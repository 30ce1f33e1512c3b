"""The estimator alone: exact where it can be, calm where nothing is learned, never negative."""

import itertools
import random
from collections.abc import Sequence
from operator import mul

import numpy as np
import pytest

from engine.least_squares import DirectionalLeastSquares


def estimator(
    start: Sequence[float], forgetting: float = 0.99, ageing: float = 0.0
) -> DirectionalLeastSquares:
    return DirectionalLeastSquares(start, variance=100.0, forgetting=forgetting, ageing=ageing)


def random_features(rng: random.Random, size: int) -> list[float]:
    return [rng.random() for _ in range(size)]


def test_without_forgetting_it_is_ridge_regression_towards_the_start() -> None:
    fit = estimator([1.0], forgetting=1.0)
    for value in (3.0, 5.0, 4.0):
        fit.update([2.0], value)
    # min over θ of (θ - 1)²/100 + Σ (value - 2θ)²
    assert fit.estimate == pytest.approx([(1 / 100 + 2 * 12) / (1 / 100 + 3 * 4)])


def test_exact_observations_are_reproduced() -> None:
    rng = random.Random(1)
    truth = [0.5, 2.0, 0.0]
    fit = estimator([1.0, 1.0, 1.0])
    for _ in range(2000):
        features = random_features(rng, 3)
        fit.update(features, sum(map(mul, truth, features)))
    assert fit.estimate == pytest.approx(truth, abs=1e-3)


def test_what_is_orthogonal_to_the_news_is_neither_changed_nor_forgotten() -> None:
    lulled, fresh = estimator([1.0, 1.0]), estimator([1.0, 1.0])
    for fit in (lulled, fresh):
        for _ in range(50):
            fit.update([0.0, 1.0], 7.0)
    for _ in range(20_000):
        lulled.update([1.0, 0.0], 3.0)
    assert lulled.estimate[1] == fresh.estimate[1]
    for fit in (lulled, fresh):
        fit.update([0.0, 1.0], 70.0)
    assert lulled.estimate[1] == fresh.estimate[1] < 9


def test_what_is_seen_again_and_again_is_followed() -> None:
    fit = estimator([1.0, 1.0])
    for _ in range(5000):
        fit.update([1.0, 0.0], 3.0)
    for _ in range(500):  # five times the memory of 100
        fit.update([1.0, 0.0], 6.0)
    assert fit.estimate[0] == pytest.approx(6.0, rel=0.01)


def test_ageing_lets_a_direction_that_was_not_seen_be_learned_anew() -> None:
    stiff, aged = estimator([1.0, 1.0]), estimator([1.0, 1.0], ageing=1e-3)
    for fit in (stiff, aged):
        for _ in range(50):
            fit.update([0.0, 1.0], 7.0)
        for _ in range(10_000):
            fit.update([1.0, 0.0], 3.0)
        fit.update([0.0, 1.0], 14.0)
    assert stiff.estimate[1] < 7.5
    assert 13 < aged.estimate[1] < 14


def test_a_negative_estimate_becomes_zero_and_the_others_make_up_for_it() -> None:
    fit = estimator([1.0, 1.0])
    for _ in range(200):
        fit.update([1.0, 1.0], 1.0)
        fit.update([1.0, 2.0], 0.5)  # unconstrained: 1.5 and -0.5
    assert fit.estimate[1] == 0
    assert fit.estimate[0] == pytest.approx(0.75, abs=0.02)  # the best without a second part


def test_a_value_that_was_held_at_zero_comes_back_when_the_data_say_so() -> None:
    fit = estimator([1.0, 1.0])
    for _ in range(500):
        fit.update([1.0, 1.0], 1.0)
        fit.update([1.0, 2.0], 0.5)
    for _ in range(2000):
        fit.update([1.0, 1.0], 1.0)
        fit.update([1.0, 2.0], 1.5)
    assert fit.estimate == pytest.approx([0.5, 0.5], abs=0.01)


@pytest.mark.parametrize("seed", range(5))
def test_the_estimate_is_the_best_that_has_no_negative_value(seed: int) -> None:
    """Against brute force over which of three values are zero."""
    rng = random.Random(seed)
    data = [(random_features(rng, 3), rng.gauss(0, 1)) for _ in range(30)]
    fit = estimator([1.0, 1.0, 1.0], forgetting=1.0)
    for features, value in data:
        fit.update(features, value)
    rows = [*data]
    rows += [([0.1 * (i == j) for j in range(3)], 0.1) for i in range(3)]  # the start
    x, y = np.array([row[0] for row in rows]), np.array([row[1] for row in rows])
    candidates = []
    for kept in itertools.product([False, True], repeat=3):
        answer = np.zeros(3)
        mask = np.array(kept)
        if mask.any():
            answer[mask] = np.linalg.lstsq(x[:, mask], y)[0]
        if answer.min() >= 0:
            candidates.append((float(((y - x @ answer) ** 2).sum()), answer))
    best = min(candidates, key=lambda candidate: candidate[0])[1]
    assert fit.estimate == pytest.approx(best, abs=1e-3)


def test_features_that_are_all_zero_change_nothing() -> None:
    fit = estimator([1.0, 2.0])
    fit.update([0.0, 0.0], 5.0)
    assert fit.estimate == [1.0, 2.0]
