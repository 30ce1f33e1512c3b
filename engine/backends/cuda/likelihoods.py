"""How likely tokens are, by raw logits on the device: log-probabilities, prompt scores, beams.

Exponentials are added in float64, whatever the logits are in: what is reported is then right to
more digits than logits have, and agrees with what other backends say of the same logits.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import torch
from torch import Tensor

from engine.backends.cuda.choice import EditPlan
from engine.backends.cuda.device import Device, Download
from engine.backends.cuda.parcel import Parcel
from engine.backends.edits import within
from engine.backends.sampler import best_of_both, ending_cells
from engine.controls import Candidate, SampleRow, ScoredRow, TokenLogprobs
from engine.errors import RowFault

SCORED_AT_ONCE: Final = 64
"""Prompt tokens whose logits are in memory in float64 at once: 64 MB for a vocabulary of 128k."""


class LogprobPlan:
    """The log-probabilities of the sampled tokens, for the rows that ask."""

    def __init__(self, rows: Sequence[SampleRow], parcel: Parcel) -> None:
        asked = {i: row.controls.logprobs for i, row in enumerate(rows)}
        self._counts = {i: count for i, count in asked.items() if count is not None}
        self._at = parcel.add(np.array(list(self._counts), dtype=np.int64))

    def run(
        self, logits: Tensor, tokens: Tensor, sent: Sequence[Tensor], device: Device
    ) -> Download | None:
        """Begin to work them out for tokens [rows] by logits [rows, vocab]."""
        if not self._counts:
            return None
        at, most = sent[self._at], max(self._counts.values())
        some, chosen = logits.index_select(0, at), tokens.index_select(0, at)
        return device.download(_likelihoods(some, chosen, most))

    def read(self, count: int, download: Download | None) -> list[TokenLogprobs | None]:
        """An entry for each of the `count` rows."""
        result: list[TokenLogprobs | None] = [None] * count
        if download is not None:
            table = download.wait().numpy()
            for line, (i, alternatives) in zip(table, self._counts.items(), strict=True):
                result[i] = _logprobs(line, alternatives)
        return result


class ScorePlan:
    """How likely the prompt's tokens are."""

    def __init__(self, scored: Sequence[ScoredRow], vocab: int, parcel: Parcel) -> None:
        self._scored = scored
        self._counts = [len(row.targets) for row in scored]
        self._most = max((row.alternatives for row in scored), default=0)
        targets = [token for row in scored for token in row.targets]
        self._targets = parcel.add(within(targets, vocab))

    def run(self, logits: Tensor, sent: Sequence[Tensor], device: Device) -> Download | None:
        """Begin to score the targets of all rows by logits [targets of all rows, vocab].

        Some targets at a time: here memory matters more than the number of launches.
        """
        if not self._scored:
            return None
        parts = zip(
            logits.split(SCORED_AT_ONCE), sent[self._targets].split(SCORED_AT_ONCE), strict=True
        )
        return device.download(torch.cat([_scores(*part, self._most) for part in parts]))

    def read(self, download: Download | None) -> list[list[TokenLogprobs]]:
        """An entry for each target of each scored row.

        Raises RowFault with rows of the batch where logits are NaN or infinite at the top.
        """
        if download is None:
            return []
        table = download.wait().numpy()
        ends = list(itertools.accumulate(self._counts, initial=0))
        parts = [table[start:end] for start, end in itertools.pairwise(ends)]
        faulty = [
            row.row
            for row, part in zip(self._scored, parts, strict=True)
            if not np.isfinite(part[:, 0]).all()
        ]
        if faulty:
            raise RowFault(faulty, "the model computed NaN or infinite logits")
        return [
            [replace(_logprobs(line[2:], row.alternatives), rank=int(line[1])) for line in part]
            for row, part in zip(self._scored, parts, strict=True)
        ]


class CandidatePlan:
    """How the rows of beam searches may go on (see `engine.backends.sampler`)."""

    def __init__(self, rows: Sequence[SampleRow], vocab: int, parcel: Parcel) -> None:
        self._asking = {i: row.controls.beams for i, row in enumerate(rows) if row.controls.beams}
        if self._asking:
            asking = [rows[i] for i in self._asking]
            self._at = parcel.add(np.array(list(self._asking), dtype=np.int64))
            self._ending = parcel.add(ending_cells(asking, vocab))
            self._edit = EditPlan(asking, vocab, parcel)

    def run(self, logits: Tensor, sent: Sequence[Tensor], device: Device) -> Download | None:
        """Begin to look for them in logits [rows, vocab]."""
        if not self._asking:
            return None
        count = min(max(self._asking.values()), logits.shape[1])
        raw = logits.index_select(0, sent[self._at]).double().log_softmax(dim=-1)
        scores = raw.clone()
        self._edit.run(scores, sent)
        best = scores.topk(count).indices
        going_on = scores.clone()
        going_on.view(-1).index_fill_(0, sent[self._ending], -torch.inf)
        ids = torch.cat([best, going_on.topk(count).indices], dim=1)
        known = torch.stack([ids.double(), scores.gather(1, ids), raw.gather(1, ids)], dim=-1)
        return device.download(known)

    def read(self, download: Download | None) -> Mapping[int, Sequence[Candidate]]:
        """By place among the rows, those of the rows that ask, best first."""
        if download is None:
            return {}
        found = zip(self._asking.items(), download.wait().tolist(), strict=True)
        return {
            i: best_of_both(count, [Candidate(int(token), *each) for token, *each in one])
            for (i, count), one in found
        }


def _likelihoods(logits: Tensor, tokens: Tensor, count: int) -> Tensor:
    """By logits [rows, vocab]: float64 [rows, 1 + 2 * count], made for `_logprobs`."""
    best = logits.topk(min(count, logits.shape[1]), dim=-1)
    values = torch.cat([logits.gather(1, tokens[:, None]), best.values], dim=1).double()
    logprobs = values.sub_(logits.double().logsumexp(dim=-1, keepdim=True))
    return torch.cat([logprobs, best.indices.double()], dim=1)


def _scores(logits: Tensor, tokens: Tensor, count: int) -> Tensor:
    """By logits [targets, vocab]: float64 [targets, 2 + …], the largest logit and the rank of each
    token before its likelihoods."""
    better = logits > logits.gather(1, tokens[:, None])
    beside = [logits.amax(dim=-1).double(), better.sum(dim=-1).add_(1).double()]
    return torch.cat([torch.stack(beside, dim=1), _likelihoods(logits, tokens, count)], dim=1)


def _logprobs(line: np.ndarray, count: int) -> TokenLogprobs:
    """From [1 + 2 * n] numbers: the token's log-probability, the n best ones, their tokens."""
    chosen, *numbers = line.tolist()
    half = len(numbers) // 2
    top = zip(map(int, numbers[half:]), numbers[:half], strict=True)
    return TokenLogprobs(chosen, tuple(itertools.islice(top, count)))
