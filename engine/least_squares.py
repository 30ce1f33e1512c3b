"""Recursive least squares that forgets only where it learns, with no negative estimate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import mul


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

    An estimate that turned negative is set to zero and the others move with it as their
    correlations say: the projection onto the constraint in the norm of the information matrix
    (G. C. Goodwin, K. S. Sin, Adaptive Filtering, Prediction and Control, 1984, section 3.7).

    estimate: where to start, nothing negative. variance: of each start value, in units of the
    observations' noise; large means that few observations outweigh it. Features should be scaled
    so that estimates are about one. Plain Python floats: for five features faster than numpy.
    """

    def __init__(
        self, estimate: Sequence[float], *, variance: float, forgetting: float, ageing: float
    ) -> None:
        self.estimate = list(estimate)
        self._variance = variance
        self._forgetting = forgetting
        self._ageing = ageing
        self._covariance = self._unknowing()

    def update(self, features: Sequence[float], residual: float) -> None:
        """Take in that the prediction for `features` was `residual` too small."""
        gain = [sum(map(mul, row, features)) for row in self._covariance]
        uncertainty = sum(map(mul, gain, features))
        if not 0 < uncertainty < math.inf:  # all features are zero, or rounding took over
            self._covariance = self._unknowing()
            return
        step = residual / (1 + uncertainty)
        estimate = self.estimate
        for i, g in enumerate(gain):
            estimate[i] += step * g
        self._learn(gain, uncertainty)
        if min(estimate) < 0:
            self._project()

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

    def _project(self) -> None:
        """Make the estimate feasible, most negative value first."""
        estimate = self.estimate
        for _ in range(2 * len(estimate)):
            worst = min(range(len(estimate)), key=estimate.__getitem__)
            if estimate[worst] >= 0:
                break
            row = self._covariance[worst]
            excess = estimate[worst] / row[worst]
            estimate = [value - excess * p for value, p in zip(estimate, row, strict=True)]
            estimate[worst] = 0.0
        self.estimate = [max(0.0, value) for value in estimate]

    def _unknowing(self) -> list[list[float]]:
        size = range(len(self.estimate))
        return [[self._variance if i == j else 0.0 for j in size] for i in size]
