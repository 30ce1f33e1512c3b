"""A backend whose text depends on everything: the real sampler over logits hashed from a history.

One token lost, doubled or out of place changes all that follow, and so does a penalty that counts
wrong. What it says is still exact: the same history gives the same bits, whatever the batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from engine.backends.sampler import sample
from engine.backends.scripted import ScriptedBackend
from engine.controls import Sampled, SampleRow

VOCAB = 64


def logits_after(tokens: Sequence[int], vocab: int = VOCAB) -> np.ndarray:
    """The logits [vocab] that follow these tokens; close together, so that penalties matter."""
    seed = hash(tuple(tokens)) & 0xFFFF_FFFF
    return np.random.default_rng(seed).normal(0, 1.5, vocab).astype(np.float32)


class HashedBackend(ScriptedBackend):
    """A scripted backend that checks its block tables and leaves the choice to the real sampler."""

    vocab = VOCAB

    def _sample(self, rows: Sequence[SampleRow]) -> Sampled:
        if not rows:
            return Sampled([], [])
        logits = np.stack([logits_after(row.tokens[: row.position], self.vocab) for row in rows])
        return sample(torch.from_numpy(logits), rows)
