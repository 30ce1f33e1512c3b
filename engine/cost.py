"""What a step costs: a linear model of its seconds, given or learned.

T = base + prompt·(prompt tokens) + decode·(decodes) + kv_read·Σ kv read + context·Σ chunk·context
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import mul
from typing import Protocol

from engine.batch import StepShape
from engine.least_squares import DirectionalLeastSquares
from policies.base import StepCost


class LearningCost(StepCost, Protocol):
    """A `StepCost` that is told how long steps really took."""

    def of(self, shape: StepShape) -> float:
        """Predicted seconds of a step of this shape."""
        ...

    def observe(self, shape: StepShape, seconds: float) -> None:
        """Learn that a step of this shape took `seconds`."""
        ...


@dataclass(frozen=True, slots=True)
class LinearCost:
    """Fixed coefficients, in seconds a unit. A `LearningCost` that does not learn."""

    base: float = 0.0
    prompt_token: float = 0.0
    decode: float = 0.0
    kv_read: float = 0.0
    chunk_context: float = 0.0
    relative_error: float = 0.0
    epoch: int = 0

    def seconds(self, prefill: int, decodes: int, kv_read: int, chunk_context: int) -> float:
        """Predicted seconds of a step of this shape."""
        return (
            self.base
            + self.prompt_token * prefill
            + self.decode * decodes
            + self.kv_read * kv_read
            + self.chunk_context * chunk_context
        )

    def of(self, shape: StepShape) -> float:
        """Predicted seconds of a step of this shape."""
        return self.seconds(shape.prefill, shape.decodes, shape.kv_read, shape.chunk_context)

    def observe(self, shape: StepShape, seconds: float) -> None:
        """The coefficients stay as they are."""

    def times(self, factor: float) -> LinearCost:
        """A machine on which every step takes so many times as long."""
        base, prompt_token, decode, read, context = (factor * each for each in _vector(self))
        error, epoch = self.relative_error, self.epoch
        return LinearCost(base, prompt_token, decode, read, context, error, epoch)


PRIOR = LinearCost(
    base=5e-3, prompt_token=5e-4, decode=1e-3, kv_read=2e-6, chunk_context=5e-7, relative_error=1.0
)
"""A model of some 10⁸ parameters on two CPU cores, as far as orders of magnitude go."""


class FittedCost:
    """Learns the coefficients from every step (`LearningCost`); starts as `prior`.

    The method is least squares with directional forgetting and non-negative coefficients
    (`DirectionalLeastSquares`) on relative errors:

        features   the seconds that each term takes by the prior, over `scale`
        value      the seconds of the step, over `scale`
        scale      the predicted seconds, or half the actual ones if those are more

    So a decode step of 5 ms counts as much as a prompt step of 500 ms, all features are of the
    order of one, and a step held up by a busy machine is nearly ignored: its weight falls with the
    square of its seconds. A change that lasts is followed within some MEMORY steps of the kind it
    shows in. A coefficient whose quantity never occurs keeps its prior; where the prior is zero,
    PRIOR gives the order of magnitude for the scaling only.

    The same observations give the same numbers. Raises ValueError for a negative prior.
    """

    MEMORY = 200
    """Steps of one kind that count."""

    DOUBT = 1000.0
    """Variance of the prior's coefficients, relative to their squares and to the variance of a
    step's time: they may be wrong by three times their size where steps scatter by a tenth."""

    AGEING = 1e-6
    """Variance that a coefficient gains in a step: after a million steps without news of it, it is
    as doubtful as if it had been seen once."""

    FASTEST = 1e-2
    """No step counts as faster than this part of what PRIOR's orders of magnitude say."""

    def __init__(self, prior: LinearCost = PRIOR) -> None:
        start = _vector(prior)
        if min(start) < 0:
            raise ValueError(f"a step cannot cost less than nothing: {prior}")
        self._units = [own or usual for own, usual in zip(start, _vector(PRIOR), strict=True)]
        factors = [own / unit for own, unit in zip(start, self._units, strict=True)]
        self._fit = DirectionalLeastSquares(
            factors, variance=self.DOUBT, forgetting=1 - 1 / self.MEMORY, ageing=self.AGEING
        )
        self._coefficients: tuple[float, ...] = start
        self._error = RecentError()
        self._epochs = Epochs(factors)
        self._observations = 0

    @property
    def observations(self) -> int:
        """Steps learned from."""
        return self._observations

    @property
    def relative_error(self) -> float:
        """Mean absolute error of recent predictions over the mean step; 1 before the first."""
        return self._error.relative

    @property
    def epoch(self) -> int:
        """Changes only when a coefficient moved by more than 5% since it last changed.

        And enough for predictions to move: see `Epochs`.
        """
        return self._epochs.number

    @property
    def coefficients(self) -> LinearCost:
        """What is known now, frozen."""
        error, epoch = self.relative_error, self.epoch
        base, prompt_token, decode, read, context = self._coefficients
        return LinearCost(base, prompt_token, decode, read, context, error, epoch)

    def seconds(self, prefill: int, decodes: int, kv_read: int, chunk_context: int) -> float:
        """Predicted seconds of a step of this shape."""
        base, prompt_token, decode, read, context = self._coefficients
        return (
            base
            + prompt_token * prefill
            + decode * decodes
            + read * kv_read
            + context * chunk_context
        )

    def of(self, shape: StepShape) -> float:
        """Predicted seconds of a step of this shape."""
        return self.seconds(shape.prefill, shape.decodes, shape.kv_read, shape.chunk_context)

    def observe(self, shape: StepShape, seconds: float) -> None:
        """Learn that a step of this shape took `seconds`.

        Raises ValueError unless `seconds` is finite and not negative.
        """
        if not 0 <= seconds < math.inf:
            raise ValueError(f"a step cannot take {seconds} s")
        amounts = (1, shape.prefill, shape.decodes, shape.kv_read, shape.chunk_context)
        terms = list(map(mul, self._units, amounts))
        predicted = sum(map(mul, self._fit.estimate, terms))
        scale = max(predicted, seconds / 2, self.FASTEST * sum(terms))
        self._fit.update([term / scale for term in terms], seconds / scale)
        self._coefficients = tuple(map(mul, self._fit.estimate, self._units))
        self._error.add(seconds, predicted)
        self._epochs.look(terms, self._fit.estimate)
        self._observations += 1


class RecentError:
    """Mean absolute error over mean seconds, of about the last hundred steps."""

    KEEP = 0.99

    def __init__(self) -> None:
        self._error = 0.0
        self._seconds = 0.0

    def add(self, seconds: float, predicted: float) -> None:
        self._error = self.KEEP * self._error + abs(seconds - predicted)
        self._seconds = self.KEEP * self._seconds + seconds

    @property
    def relative(self) -> float:
        """1 while nothing is known."""
        return self._error / self._seconds if self._seconds else 1.0


class Epochs:
    """Counts how often the model has changed enough for plans to be made anew.

    Coefficients that occur together trade places without any prediction changing, and one that
    hardly matters may double. So predictions are compared: those made now and those of the
    coefficients at the epoch's start, for the steps that come, once in WINDOW steps. Each
    coefficient's verdict is their mean difference, each step counting by the part of it that is
    this coefficient's: rare prompt steps are not drowned by decodes. A prediction that moved by
    more than 5% means that some coefficient did.
    """

    WINDOW = 128
    MOVED = 0.05

    def __init__(self, factors: Sequence[float]) -> None:
        self.number = 0
        self._begin(factors)

    def look(self, terms: Sequence[float], factors: Sequence[float]) -> None:
        """Compare the predictions for a step: Σ factors·terms, now and at the epoch's start."""
        parts = list(map(mul, factors, terms))
        now, then = sum(parts), sum(map(mul, self._reference, terms))
        if now > 0:
            moved = (now - then) / (max(now, then) * now)
            for i, part in enumerate(parts):
                self._weights[i] += part / now
                self._moves[i] += part * moved
        self._steps += 1
        if self._steps % self.WINDOW == 0:
            self._judge(factors)

    def _judge(self, factors: Sequence[float]) -> None:
        for i, weight in enumerate(self._weights):
            if weight < 1:  # too little to go by: keep gathering
                continue
            if abs(self._moves[i]) > self.MOVED * weight:
                self.number += 1
                self._begin(factors)
                return
            self._weights[i] = self._moves[i] = 0.0

    def _begin(self, factors: Sequence[float]) -> None:
        self._reference = tuple(factors)
        self._weights = [0.0] * len(factors)
        self._moves = [0.0] * len(factors)
        self._steps = 0


def _vector(cost: LinearCost) -> tuple[float, ...]:
    return (cost.base, cost.prompt_token, cost.decode, cost.kv_read, cost.chunk_context)
