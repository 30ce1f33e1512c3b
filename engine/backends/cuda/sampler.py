"""Sample on the device, as the CPU's sampler would, without waiting for anything.

    host      rows ─▶ plans: cells, words, columns ─┐                   collect: faults, lists
              ──────────────────────────────────────┼ one upload ────────▲─────────────────
    device    logits ─▶ max ─▶ edit ─▶ max ─▶ draw ─▶ tokens ─▶ downloads ┘
                                                      └▶ the next step's ids

What each control means, and the order they come in, is `engine.backends.sampler`'s; so are the
uniform numbers, a hash of (seed, sequence index, position), which are worked out on the host since
they depend on nothing that the device knows. A step of greedy rows without controls uploads
nothing. The number of launches depends on the controls, not on the number of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

import torch
from torch import Tensor

from engine.backends.cuda.choice import NOT_FINITE, NOTHING_ALLOWED, ChoicePlan
from engine.backends.cuda.device import Device, Download
from engine.backends.cuda.draw import Draw
from engine.backends.cuda.likelihoods import CandidatePlan, LogprobPlan, ScorePlan
from engine.backends.cuda.parcel import Parcel
from engine.backends.cuda.torch_draw import draw_in_torch
from engine.controls import Sampled, SampleRow, ScoredRow
from engine.errors import RowFault

FAULTS: Final = (
    (NOT_FINITE, "the model computed NaN or infinite logits"),
    (NOTHING_ALLOWED, "the sampling controls forbid every token"),
)


class PendingSample(Protocol):
    """A sample that the device works on.

    tokens: int64 [rows], on the device; what is enqueued later may read them. Those of rows at
    fault are within the vocabulary and mean nothing.
    """

    tokens: Tensor

    def collect(self) -> Sampled:
        """Wait for it. Raises RowFault for rows that are at fault."""
        ...


class DeviceSampler:
    """Chooses tokens for rows of logits on a device. draw: who draws, if the best is not taken."""

    def __init__(self, device: Device, draw: Draw = draw_in_torch) -> None:
        self.draw = draw
        self._device = device

    @torch.inference_mode()
    def sample(
        self,
        logits: Tensor,
        rows: Sequence[SampleRow],
        scored: Sequence[ScoredRow] = (),
        sample_rows: Sequence[int] | None = None,
    ) -> PendingSample:
        """Begin to sample a token for each row, and to score prompts.

        logits: [rows + targets of all `scored` rows, vocab], float32 or bfloat16 (controls are
        applied in float32); not changed. rows: their `tokens` are looked at here, if controls look
        back on them, and must be complete. sample_rows: the row of the batch that each of `rows`
        is, by which faults name it, as they name the `scored` rows; None for 0, 1, 2, …
        Raises IndexError for controls with a token that is not in the vocabulary.
        """
        count, vocab = len(rows), logits.shape[1]
        parcel = Parcel()
        plans = _Plans(
            ChoicePlan(rows, vocab, self.draw, parcel),
            LogprobPlan(rows, parcel),
            CandidatePlan(rows, vocab, parcel),
            ScorePlan(scored, vocab, parcel),
        )
        sent = parcel.send(self._device)
        sampling, scoring = logits[:count], logits[count:]
        tokens, outcomes = plans.choice.run(sampling, sent)
        downloads = _Downloads(
            self._device.download(outcomes),
            plans.logprobs.run(sampling, tokens, sent, self._device),
            plans.candidates.run(sampling, sent, self._device),
            plans.scores.run(scoring, sent, self._device),
        )
        names = range(count) if sample_rows is None else sample_rows
        return _Pending(tokens, names, plans, downloads)


class _Plans(NamedTuple):
    choice: ChoicePlan
    logprobs: LogprobPlan
    candidates: CandidatePlan
    scores: ScorePlan


class _Downloads(NamedTuple):
    outcomes: Download
    logprobs: Download | None
    candidates: Download | None
    scores: Download | None


class _Pending:
    """What was begun, and how it is read."""

    def __init__(
        self, tokens: Tensor, names: Sequence[int], plans: _Plans, downloads: _Downloads
    ) -> None:
        self.tokens = tokens
        self._names = names
        self._plans = plans
        self._downloads = downloads

    def collect(self) -> Sampled:
        plans, downloads = self._plans, self._downloads
        tokens: list[int] = downloads.outcomes.wait().tolist()
        for fault, reason in FAULTS:
            if fault in tokens:
                rows = zip(self._names, tokens, strict=True)
                raise RowFault((int(row) for row, token in rows if token == fault), reason)
        return Sampled(
            tokens,
            plans.logprobs.read(len(tokens), downloads.logprobs),
            plans.candidates.read(downloads.candidates),
            plans.scores.read(downloads.scores),
        )
