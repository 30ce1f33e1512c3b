"""The factors that make a matrix and what it multiplies easiest to keep in int8.

Dividing channel j of the activations by f[j] and multiplying column j of the weights by it changes
no product, but where the rounding errors are (SmoothQuant, https://arxiv.org/abs/2211.10438). A
step of a row is its largest element over 127, and rounding errors are spread evenly over a step and
do not know of each other, so that the expected squared error of the products is a twelfth of

    sum_t a[t] (max_j |x[t, j]| / f[j] / 127)^2  *  sum_j c[j] f[j]^2       activations, A below
    sum_o b[o] (max_j |w[o, j]| * f[j] / 127)^2  *  sum_j h[j] / f[j]^2     weights, B below

where a and b say how much an error counts at token t and in output o, and

    h[j] = sum_t a[t] x[t, j]^2         c[j] = sum_o b[o] w[o, j]^2

A power of the peaks, as in the paper, is a guess at the least of A + B. Here it is looked for, and
as log (A + B) is convex in log f there is one. Where its derivative by log f[j] is zero, channel j
has as large a part in the maxima of the activations and in the energy h as it has in the energy c
and in the maxima of the weights; a step multiplies f[j] by a power of the ratio of the two. Maxima
are replaced by norms of a high order where their parts are counted, so that a channel that is
nearly the largest has a part too.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

STEPS = 25
RATE = 0.15
"""The power of the ratio by which a step changes the factors."""

DOUBLINGS = 3
"""Parts in the maxima are those in the norm of order 2 ** DOUBLINGS."""

MOST_OUTPUTS = 512
"""Rows of weights that maxima are taken of, evenly from all there are. Of activations every row is
taken: which channels peak differs from token to token."""

CHUNK_ELEMENTS = 1 << 18
"""Elements of rows looked at in one go: they stay in a core's second cache."""

FLOOR = 1e-6
"""Of the mean: a channel that is quieter than this counts as this."""

STEPS_PER_OCTAVE = 16
"""Factors are rounded to so many powers of two in an octave, so that machines whose sums differ in
the last bits make the same weights."""


@dataclass(frozen=True, slots=True)
class Side:
    """One side of the products: activations or weights.

    rows [n, channels] are magnitudes; counts [n]: how much an error in each row counts. energy
    [channels]: how much an error in each channel of the *other* side counts.
    """

    rows: Tensor
    counts: Tensor
    energy: Tensor

    @classmethod
    def of(
        cls,
        rows: Tensor,
        counts: Tensor,
        energy: Tensor | None = None,
        most: int | None = None,
    ) -> Side:
        """At most `most` of the rows, and the energy of all unless it is said."""
        if energy is None:
            energy = counts @ rows.square()
        every = 1 if most is None else -(-len(rows) // most)
        return cls(rows[::every].abs(), counts[::every] * every, energy)

    def maxima(self, factors: Tensor) -> tuple[Tensor, Tensor]:
        """The sum of squares of the rows' maxima after `factors`, and each channel's part in it."""
        some = max(1, CHUNK_ELEMENTS // len(factors))
        tiny = torch.finfo(factors.dtype).tiny
        total, parts = torch.zeros(()), torch.zeros_like(factors)
        for rows, counts in zip(self.rows.split(some), self.counts.split(some), strict=True):
            powers = rows * factors
            largest = powers.amax(dim=1).clamp_(min=tiny)
            powers.div_(largest[:, None])
            for _ in range(DOUBLINGS):
                powers.square_()
            squares = counts * largest.square()
            total += squares.sum()
            parts += (squares / powers.sum(dim=1)) @ powers
        return total, parts / total


def balanced(activations: Side, weights: Side) -> Tensor:
    """Factors [channels] of weights whose products have the least error, their median about 1."""
    tiny = torch.finfo(torch.float32).tiny
    heard, used = _floored(activations.energy), _floored(weights.energy)
    logs = 0.3 * (heard.log() - used.log()) / 2
    least, best = float("inf"), torch.ones_like(logs)
    for _ in range(STEPS):
        factors = (logs - logs.median()).exp()
        peaks, peak_parts = activations.maxima(factors.reciprocal())
        steps, step_parts = weights.maxima(factors)
        use, hearing = used * factors.square(), heard / factors.square()
        of_activations, of_weights = peaks * use.sum(), steps * hearing.sum()
        error = float(of_activations + of_weights)
        if error < least:
            least, best = error, factors
        grow = of_activations * peak_parts + of_weights * hearing / hearing.sum()
        shrink = of_activations * use / use.sum() + of_weights * step_parts
        ratio = grow.clamp(min=tiny).log() - shrink.clamp(min=tiny).log()
        logs = logs + RATE * ratio.clamp(-1, 1)
    return _rounded(best)


def _floored(energy: Tensor) -> Tensor:
    """The energies, none of them zero."""
    return energy.clamp(min=max(float(energy.mean()) * FLOOR, torch.finfo(energy.dtype).tiny))


def _rounded(factors: Tensor) -> Tensor:
    steps = (factors.double().log2() * STEPS_PER_OCTAVE).round()
    return (steps / STEPS_PER_OCTAVE).exp2().float()
