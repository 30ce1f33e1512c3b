"""What a step costs: a linear model of its seconds.

T = base + prompt·(prompt tokens) + decode·(decodes) + kv_read·Σ kv read + context·Σ chunk·context
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from engine.batch import Batch


@dataclass(frozen=True, slots=True)
class StepShape:
    """The four quantities that a step's time depends on, all counted in tokens.

    prefill: tokens in rows of more than one; decodes: rows of one token; kv_read: KV positions
    read, over all rows; chunk_context: Σ over prefill rows of count · KV length.
    """

    prefill: int
    decodes: int
    kv_read: int
    chunk_context: int

    @classmethod
    def of(cls, batch: Batch) -> StepShape:
        counts = np.diff(batch.qo_indptr).astype(np.int64)
        lengths = batch.kv_lens.astype(np.int64)
        chunks = counts > 1
        return cls(
            prefill=int(counts[chunks].sum()),
            decodes=int((~chunks).sum()),
            kv_read=int(lengths.sum()),
            chunk_context=int((counts * lengths)[chunks].sum()),
        )


@dataclass(frozen=True, slots=True)
class LinearCost:
    """Fixed coefficients, in seconds a unit (`policies.base.StepCost`)."""

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
