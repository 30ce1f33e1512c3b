"""Recursive least squares that forgets only where it learns, with no negative estimate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import mul

SWEEPS = 5
"""Rounds of Hildreth's method at most; two are usual, and what is left is cut at zero."""

PRECISION = 1e-6
"""Moves of an estimate that are not worth another round."""


class DirectionalLeastSquares:
    """Fits y ≈ Σ estimate·features, one observation at a time, in O(n²) and a few microseconds.

    Plain exponential forgetting loses what it knew wherever no news come from: after a long run of
    equal features its covariance explodes and the next different one throws the estimate off. This
    is restricted ("directional") exponential forgetting: an observation ages the information in its
    own direction only, everything orthogonal to it is kept (R. Kulhavý, Restricted exponential
    forgetting in real-time identification, Automatica 23(5), 1987). With ξ = xᵀPx and forgetting φ:

        estimate += P x · residual / (1 + ξ)
        1/P      += (φ - (1 - φ)/ξ) · x xᵀ

    The uncertainty ξ of a direction that is seen again and again settles at (1 - φ)/φ, so its last
    1/(1 - φ) observations count. What is not seen ages slowly too: `ageing` is added to the
    variance of each estimate, up to the one it started with, or the gain would fade over millions
    of steps (S. Bittanti, P. Bolzern, M. Campi, Convergence and exponential convergence of
    identification algorithms with directional forgetting factor, Automatica 26(5), 1990).

    `estimate` is the best that has no negative value: the unconstrained one, projected in the norm
    of the information matrix by Hildreth's method, so that what a value lacks to zero is made up
    by those it is correlated with (C. Hildreth, A quadratic programming procedure, Naval Research
    Logistics Quarterly 4, 1957). The unconstrained one goes on beneath, or the projections would
    pile up.

    estimate: where to start, nothing negative. variance: of each start value, in units of the
    observations' noise; large means that few observations outweigh it. Features should be scaled
    so that estimates are about one. Plain Python floats: for five features faster than numpy.
    """

    def __init__(
        self, estimate: Sequence[float], *, variance: float, forgetting: float, ageing: float
    ) -> None:
        self.estimate = list(estimate)
        self._free = list(estimate)
        self._variance = variance
        self._forgetting = forgetting
        self._ageing = ageing
        self._covariance = self._unknowing()

    def update(self, features: Sequence[float], value: float) -> None:
        """Take in that `value` was observed for `features`."""
        gain = [sum(map(mul, row, features)) for row in self._covariance]
        uncertainty = sum(map(mul, gain, features))
        if not 0 < uncertainty < math.inf:  # all features are zero, or rounding took over
            self._free, self._covariance = list(self.estimate), self._unknowing()
            return
        free = self._free
        step = (value - sum(map(mul, free, features))) / (1 + uncertainty)
        for i, g in enumerate(gain):
            free[i] += step * g
        self._learn(gain, uncertainty)
        self.estimate = self._projected() if min(free) < 0 else list(free)

    def _learn(self, gain: list[float], uncertainty: float) -> None:
        """Add the observation's information and forget as much of the old in its direction."""
        keep = self._forgetting
        factor = (keep * uncertainty - (1 - keep)) / (keep * uncertainty * (1 + uncertainty))
        covariance, size = self._covariance, len(gain)
        for i, row in enumerate(covariance):
            scaled = factor * gain[i]
            for j in range(i, size):  # one triangle, mirrored: it stays exactly symmetric
                row[j] = covariance[j][i] = row[j] - scaled * gain[j]
            if row[i] < self._variance:
                row[i] += self._ageing

    def _projected(self) -> list[float]:
        """The free estimate, pushed to zero where it is negative; a push too far is taken back."""
        values = list(self._free)
        pushes = [0.0] * len(values)
        for _ in range(SWEEPS):
            moved = False
            for i, row in enumerate(self._covariance):
                if values[i] >= 0 and not pushes[i]:
                    continue
                push = max(-pushes[i], -values[i] / row[i])
                if abs(push) * row[i] > PRECISION:
                    moved = True
                    pushes[i] += push
                    for j, p in enumerate(row):
                        values[j] += push * p
            if not moved:
                break
        return [max(0.0, value) for value in values]

    def _unknowing(self) -> list[list[float]]:
        size = range(len(self._free))
        return [[self._variance if i == j else 0.0 for j in size] for i in size]
