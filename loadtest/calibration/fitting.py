"""From observed steps to a cost model, its residuals, and how long these last."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from engine.cost import LinearCost
from engine.simulation.residuals import DECODE, PROMPT, Persistence, Residuals, quantiles
from loadtest.calibration.watching import Observation
from loadtest.profiles.least_squares import non_negative
from loadtest.profiles.profile import Observed

Floats = npt.NDArray[np.float64]

ROUNDS: Final = 10
FAR: Final = 0.1
"""A relative error from which on a step counts less: a machine that was held up says nothing of
what steps cost. Weights are Huber's (P. Huber, Robust estimation of a location parameter, Annals of
Mathematical Statistics 35, 1964), found by iterating."""

LAGS: Final = 64
MOST_SHARE: Final = 0.95
_SECONDS: Final = np.geomspace(0.05, 20.0, 25)


def fit(steps: Sequence[Observation]) -> tuple[LinearCost, Residuals, Observed]:
    """The cost for which the steps' relative errors are least, and what is left of them.

    Coefficients are for the sum of all seconds to be right: what holds the machine up now and then
    is part of what steps take, spread over them evenly.
    """
    terms, seconds = _terms(steps), np.array([step.seconds for step in steps])
    coefficients = _robust(terms / seconds[:, None])
    coefficients *= seconds.sum() / (terms @ coefficients).sum()
    rounded: list[Any] = [float(f"{each:.4g}") for each in coefficients]
    predicted = terms @ np.array(rounded)
    factors = seconds / predicted
    error = float(np.abs(seconds - predicted).sum() / seconds.sum())
    return LinearCost(*rounded), _residuals(steps, factors), _observed(steps, error)


def _terms(steps: Sequence[Observation]) -> Floats:
    """One step a row: what each coefficient is multiplied with."""
    shapes = [step.shape for step in steps]
    return np.array([[1, s.prefill, s.decodes, s.kv_read, s.chunk_context] for s in shapes], float)


def _robust(relative: Floats) -> Floats:
    """The coefficients >= 0 that bring most rows of relative · coefficients close to one."""
    weights = np.ones(len(relative))
    for _ in range(ROUNDS):
        coefficients = non_negative(relative, weights)
        errors = np.abs(relative @ coefficients - 1)
        weights = np.minimum(1.0, FAR / np.maximum(errors, 1e-12))
    return coefficients


def _residuals(steps: Sequence[Observation], factors: Floats) -> Residuals:
    prompt = np.array([step.shape.prefill > 0 for step in steps])
    kinds = {DECODE: factors[~prompt] - 1, PROMPT: factors[prompt] - 1}
    by_kind = {kind: quantiles(values.tolist()) for kind, values in kinds.items() if len(values)}
    scores = np.empty(len(factors))
    for chosen in (prompt, ~prompt):
        scores[chosen] = _normal_scores(factors[chosen])
    return Residuals(by_kind, _persistence(scores, np.array([step.at for step in steps])))


def _normal_scores(values: Floats) -> Floats:
    """Values of a standard normal variable in the same order."""
    ranks = np.argsort(np.argsort(values)) + 0.5
    inverse = NormalDist().inv_cdf
    return np.array([inverse(float(rank) / len(values)) for rank in ranks])


def _persistence(scores: Floats, at: Floats) -> Persistence:
    """How much of the scatter lasts, and for how long.

    share · exp(-lag / seconds) is fitted to the products of scores that far apart in time.
    """
    lags = [(at[k:] - at[:-k], scores[k:] * scores[:-k]) for k in range(1, min(LAGS, len(at)))]
    if not lags:
        return Persistence()
    apart, products = (np.concatenate(side) for side in zip(*lags, strict=True))
    best, least = Persistence(), np.inf
    for seconds in _SECONDS:
        shape = np.exp(-apart / seconds)
        share = float(np.clip((products @ shape) / (shape @ shape), 0.0, MOST_SHARE))
        error = float(np.square(products - share * shape).sum())
        if error < least:
            best, least = Persistence(round(share, 3), round(float(seconds), 3)), error
    return best


def _observed(steps: Sequence[Observation], error: float) -> Observed:
    shapes = [step.shape for step in steps]
    host = float(np.median([step.seconds - step.computing for step in steps]))
    return Observed(
        steps=len(steps),
        decodes=max(shape.decodes for shape in shapes),
        prompt_tokens=max(shape.prefill for shape in shapes),
        kv_read=max(shape.kv_read for shape in shapes),
        chunk_context=max(shape.chunk_context for shape in shapes),
        error=round(error, 4),
        host_s=float(f"{host:.3g}"),
    )
