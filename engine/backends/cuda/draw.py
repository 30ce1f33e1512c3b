"""What draws tokens on the device, in whole numbers: they add to the same in whatever order.

The weight of a token, exp((logit - best) / temperature), is kept as a multiple of 2^-45 (for a
vocabulary of 128k; the sum of all fits 62 bits). Sums of such numbers are exact, so neither the
scan that a GPU chooses for a shape nor the order of its atomics changes a draw, and a token that is
drawn in one batch is drawn in every other. What is lost is below 2^-28 of a row's probability.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from torch import Tensor

from engine.backends.cuda.parcel import Parcel
from engine.backends.sampler import uniforms
from engine.controls import SampleRow


class DrawControls(NamedTuple):
    """The controls of rows that are drawn for, on the device, each [rows, 1].

    temperature, uniform, p, min_p: float64. k: int64. k is the vocabulary, p 1 and min_p 0 for a
    row where they drop nothing, and None if there is no other.
    """

    temperature: Tensor
    uniform: Tensor
    k: Tensor | None
    p: Tensor | None
    min_p: Tensor | None


Draw: TypeAlias = Callable[[Tensor, Tensor, DrawControls], Tensor]
"""(logits [rows, vocab] float32, their maxima [rows], controls) -> tokens [rows], int64.

Any token within the vocabulary for a row whose maximum is not finite. The logits are not changed.
"""


class DrawPlan:
    """What is uploaded to draw for rows, and what is done with it.

    rows: those to draw for, in the order of their logits. draw: who draws.
    """

    def __init__(self, rows: Sequence[SampleRow], vocab: int, draw: Draw, parcel: Parcel) -> None:
        controls = [row.controls for row in rows]
        ks = np.array([c.top_k if 0 < c.top_k < vocab else vocab for c in controls], dtype=np.int64)
        ps, floors = np.array([(c.top_p, c.min_p) for c in controls], dtype=np.float64).T
        temperatures = np.array([c.temperature for c in controls], dtype=np.float64)
        self._draw = draw
        self._filters = ((ks < vocab).any(), (ps < 1).any(), (floors > 0).any())
        columns = (temperatures, uniforms(rows), ks, ps, floors)
        self._columns = [parcel.add(column[:, None]) for column in columns]

    def run(self, logits: Tensor, best: Tensor, sent: Sequence[Tensor]) -> Tensor:
        """A token for each row (see `Draw`)."""
        temperature, uniform, *columns = (sent[place] for place in self._columns)
        used = zip(columns, self._filters, strict=True)
        filters = [column if drops else None for column, drops in used]
        return self._draw(logits, best, DrawControls(temperature, uniform, *filters))


def unit(vocab: int) -> float:
    """What a weight of 1 is kept as: the largest power of two of which `vocab` fit 62 bits."""
    return float(1 << 62 - vocab.bit_length())
