"""The tokens of rows, chosen on the device: edits, the best of each row, draws, faults."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from engine.backends.cuda.draw import Draw, DrawPlan
from engine.backends.cuda.parcel import Parcel
from engine.backends.edits import (
    Edits,
    allowed_words,
    apply,
    edits_logits,
    edits_of,
    is_greedy,
    limited,
)
from engine.controls import SampleRow

NOT_FINITE: Final = -1
NOTHING_ALLOWED: Final = -2


class Choice(NamedTuple):
    """tokens: int64 [rows], each within the vocabulary, also where a row is at fault.

    outcomes: the same, but NOT_FINITE or NOTHING_ALLOWED for a row at fault.
    """

    tokens: Tensor
    outcomes: Tensor


class ChoicePlan:
    """What is uploaded to choose tokens, and what is done with it.

    Rows that are greedy and not edited need no more than the largest of their logits. The others
    are copied, edited together, and drawn from or not.
    """

    def __init__(self, rows: Sequence[SampleRow], vocab: int, draw: Draw, parcel: Parcel) -> None:
        worked = [i for i, row in enumerate(rows) if edits_logits(row) or _draws(row)]
        working = [rows[i] for i in worked]
        drawn = [i for i, row in enumerate(working) if _draws(row)]
        self._rows = len(rows)
        self._worked, self._drawn = len(worked), len(drawn)
        self._at = parcel.add(np.array(worked, dtype=np.int64))
        self._drawn_at = parcel.add(np.array(drawn, dtype=np.int64))
        edited = any(map(edits_logits, working))
        self._edit = EditPlan(working, vocab, parcel) if edited else None
        self._draw = DrawPlan([working[i] for i in drawn], vocab, draw, parcel) if drawn else None

    def run(self, logits: Tensor, sent: Sequence[Tensor]) -> Choice:
        """Choose from logits [rows, vocab], which are not changed."""
        best, tokens = logits.max(dim=-1)  # NaN if any logit is
        finite = best.isfinite()
        outcomes = tokens
        if self._worked:
            mine, ends = self._work(logits, sent)
            at = sent[self._at]
            tokens, outcomes = tokens.index_copy(0, at, mine), tokens.index_copy(0, at, ends)
        return Choice(tokens, torch.where(finite, outcomes, NOT_FINITE))

    def _work(self, logits: Tensor, sent: Sequence[Tensor]) -> Choice:
        """The choice for the rows that are edited or drawn."""
        working = logits
        if self._worked < self._rows:
            working = logits.index_select(0, sent[self._at])
        elif self._edit is not None and logits.dtype == torch.float32:
            working = logits.clone()
        working = working.to(torch.float32)
        if self._edit is not None:
            self._edit.run(working, sent)
        best, tokens = working.max(dim=-1)
        if self._draw is not None and self._drawn == self._worked:
            tokens = self._draw.run(working, best, sent)
        elif self._draw is not None:
            at = sent[self._drawn_at]
            some, theirs = working.index_select(0, at), best.index_select(0, at)
            tokens.index_copy_(0, at, self._draw.run(some, theirs, sent))
        return Choice(tokens, torch.where(best.isfinite(), tokens, NOTHING_ALLOWED))


class EditPlan:
    """The edits of some rows (see `engine.backends.edits`), uploaded and applied."""

    def __init__(self, rows: Sequence[SampleRow], vocab: int, parcel: Parcel) -> None:
        masked = limited(rows)
        self._rows, self._masked = len(rows), len(masked)
        self._at = parcel.add(np.array(masked, dtype=np.int64))
        self._words = parcel.add(allowed_words([rows[i] for i in masked], vocab))
        self._edits = [parcel.add(array) for array in edits_of(rows, vocab)]

    def run(self, logits: Tensor, sent: Sequence[Tensor]) -> None:
        """Edit the logits [rows, vocab] of the rows, in place."""
        if self._masked == self._rows:
            logits.masked_fill_(_forbidden(sent[self._words], logits.shape[1]), -torch.inf)
        elif self._masked:
            at, forbidden = sent[self._at], _forbidden(sent[self._words], logits.shape[1])
            kept = logits.index_select(0, at).masked_fill_(forbidden, -torch.inf)
            logits.index_copy_(0, at, kept)
        apply(logits, Edits(*(sent[place] for place in self._edits)))


def _draws(row: SampleRow) -> bool:
    return not is_greedy(row.controls)


def _forbidden(words: Tensor, vocab: int) -> Tensor:
    """Which tokens [rows, vocab] the packed words [rows, ceil(vocab / 32)] do not let through."""
    tokens = torch.arange(vocab, dtype=torch.int32, device=words.device)
    of_tokens = words.index_select(1, tokens >> 5)
    return of_tokens.bitwise_right_shift_(tokens & 31).bitwise_and_(1) == 0
