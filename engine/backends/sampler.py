"""Choose one token for each row, all rows in one pass, whatever controls they mix.

The order of the controls:

    raw logits ── logprobs are read here
      mask, allowed_ids, bad_words,
      min_tokens                             forbid tokens
      logit_bias                             adds
      repetition, frequency, presence        penalise
    greedy (temperature 0) takes the best of these; else
      temperature, top_k, top_p, min_p       top_p is a share of what top_k left, and min_p of the
                                             best token's probability

The filters keep tokens by a threshold, so tokens that tie with the last one kept are kept too.
Then one uniform number in [0, 1) picks from the cumulative probabilities in the order of token
ids. That number is a hash of (seed, sequence index, position): it does not depend on the rest of
the batch, on the row, or on what was drawn before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.backends.edits import (
    Edits,
    adjusts,
    allowed_words,
    apply,
    cells,
    edits_logits,
    edits_of,
    is_greedy,
    limited,
)
from engine.controls import (
    Candidate,
    Sampled,
    SampleRow,
    ScoredRow,
    TokenLogprobs,
)
from engine.errors import RowFault
from engine.grammar import allows

SCORED_AT_ONCE = 32
"""Prompt tokens whose log-probabilities over the vocabulary are in memory at once, in float64."""

FIRST_LOOK = 1024
"""Best tokens among which a top_p threshold is looked for before all are sorted."""


Draw: TypeAlias = Callable[[Tensor, Sequence[int], Tensor, Sequence[SampleRow]], Tensor]
"""(logits [n, vocab], the rows of it to draw for, their largest logits, their controls) -> tokens.

The logits are not changed.
"""

BestAllowed: TypeAlias = Callable[[Tensor, Sequence[int], Sequence[SampleRow]], Tensor]
"""(logits [n, vocab], some rows of it, their controls with masks) -> the best tokens that the masks
allow; -1 where there is none."""


@torch.inference_mode()
def sample(
    logits: Tensor,
    rows: Sequence[SampleRow],
    largest: npt.NDArray[np.int32] | None = None,
    draw: Draw | None = None,
    best_allowed: BestAllowed | None = None,
) -> Sampled:
    """Sample one token for each row of logits [rows, vocab]. The logits are not changed.

    largest: the index of each row's largest logit, -1 in rows where NaN or infinity is; found here
    if nobody knows it. draw: who draws for rows that are not greedy; None for `draw_in_torch`.
    best_allowed: who finds the best token under a mask, if `draw` looks at masks itself; else they
    are spelled out here.
    Raises RowFault with indices into `rows` where logits are NaN or infinite, and where mask and
    controls forbid every token. The number of torch calls does not grow with the number of rows.
    """
    if not rows:
        return Sampled([], [])
    if largest is None:
        best, tokens = logits.max(dim=-1)  # NaN if any logit is
    else:
        tokens = torch.from_numpy(largest).to(torch.int64)
        best = torch.where(tokens < 0, torch.nan, logits[range(len(rows)), tokens])
    _fault(best.isfinite(), "the model computed NaN or infinite logits")
    if best_allowed is not None:
        _look_under_masks(logits, rows, best, tokens, best_allowed)
        editing = [i for i, row in enumerate(rows) if adjusts(row.controls)]
    else:
        known = tokens.tolist()
        editing = [
            i for i, row in enumerate(rows) if edits_logits(row) and not _is_best(row, known[i])
        ]
    edited = logits[editing]  # copies of these rows alone
    if editing:
        _edit(edited, [rows[i] for i in editing])
        best[editing], tokens[editing] = edited.max(dim=-1)
        _fault(best.isfinite(), "the sampling controls forbid every token")
    places = {i: place for place, i in enumerate(editing)}
    drawn = [i for i, row in enumerate(rows) if not is_greedy(row.controls)]
    for values, at in (
        (logits, {i: i for i in drawn if i not in places}),
        (edited, {i: places[i] for i in drawn if i in places}),
    ):
        if at:
            index = list(at)
            chosen = (draw or draw_in_torch)(
                values, list(at.values()), best[index], [rows[i] for i in index]
            )
            tokens[index] = chosen
    return Sampled(tokens.tolist(), _logprobs(logits, tokens, rows), _candidates(logits, rows))


def uniforms(rows: Sequence[SampleRow]) -> npt.NDArray[np.float64]:
    """One number in [0, 1) for each row, a function of (seed, index, position) alone.

    Three rounds of the SplitMix64 finaliser (Steele, Lea, Flood: Fast splittable pseudorandom
    number generators, OOPSLA 2014; constants as in Vigna's splitmix64.c), each taking in one word
    of the counter; the top 53 bits make the number.
    """
    words = np.array(
        [
            [word & 0xFFFF_FFFF_FFFF_FFFF for word in (r.controls.seed, r.index, r.position)]
            for r in rows
        ],
        dtype=np.uint64,
    )
    state = np.zeros(len(rows), dtype=np.uint64)
    for word in words.T:
        state = _splitmix64(state ^ word)
    return (state >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _splitmix64(z: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    z = z + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def _fault(healthy: Tensor, reason: str) -> None:
    if not healthy.all():
        raise RowFault((~healthy).nonzero().flatten().tolist(), reason)


# ── before temperature ────────────────────────────────────────────────────────────────────────


def _edit(logits: Tensor, rows: Sequence[SampleRow]) -> None:
    """Apply masks, bias and penalties to the logits, in place."""
    _keep_allowed(logits, rows)
    apply(logits, Edits(*map(torch.from_numpy, edits_of(rows, logits.shape[1]))))


def _look_under_masks(
    logits: Tensor, rows: Sequence[SampleRow], best: Tensor, tokens: Tensor, find: BestAllowed
) -> None:
    """Put the best that its mask allows in the place of the best of all, in each row."""
    known = tokens.tolist()
    # The best of all tokens is the best of those that a mask allows, if it allows it.
    at = [
        i
        for i, row in enumerate(rows)
        if row.mask is not None and not (adjusts(row.controls) or allows(row.mask, known[i]))
    ]
    if at:
        found = find(logits, at, [rows[i] for i in at])
        tokens[at] = found
        best[at] = torch.where(found < 0, -torch.inf, logits[at, found])
        _fault(best.isfinite(), "the sampling controls forbid every token")


def _is_best(row: SampleRow, best: int) -> bool:
    """Whether a greedy row that nothing but a mask edits takes the best of all tokens."""
    if row.mask is None or not is_greedy(row.controls) or adjusts(row.controls):
        return False
    return allows(row.mask, best)


def _keep_allowed(logits: Tensor, rows: Sequence[SampleRow]) -> None:
    """Forbid what a row's mask or its allowed_ids leave out."""
    at = limited(rows)
    if at:
        forbidden = torch.from_numpy(~_allowed([rows[i] for i in at], logits.shape[1]))
        if len(at) == len(rows):
            logits.masked_fill_(forbidden, -torch.inf)
        else:
            logits[at] = logits[at].masked_fill_(forbidden, -torch.inf)


def _allowed(rows: Sequence[SampleRow], vocab: int) -> npt.NDArray[np.bool_]:
    """Which tokens [rows, vocab] both the mask and the allowed_ids of a row let through."""
    words = allowed_words(rows, vocab)
    bits = np.unpackbits(words.view(np.uint8), axis=1, count=vocab, bitorder="little")
    return bits.view(np.bool_)


# ── after temperature ─────────────────────────────────────────────────────────────────────────


def draw_in_torch(
    logits: Tensor, at: Sequence[int], best: Tensor, rows: Sequence[SampleRow]
) -> Tensor:
    """Draw from the rows `at` of the logits, whose maxima are `best`: token ids [rows].

    In float64 and relative to the best token, whose weight is 1 at every temperature.
    """
    temperature = _column(row.controls.temperature for row in rows)
    weights = logits[list(at)].double().sub_(best[:, None]).div_(temperature).exp_()
    threshold = _threshold(weights, rows)
    if threshold.any():
        weights.masked_fill_(weights < threshold, 0)
    cumulative = weights.cumsum_(dim=-1)
    total = cumulative[:, -1:]
    target = torch.from_numpy(uniforms(rows))[:, None] * total
    # Rounding must not reach the total, which no token lies beyond.
    target = torch.minimum(target, total.nextafter(torch.zeros_like(total)))
    return torch.searchsorted(cumulative, target, right=True).squeeze(1)


def _threshold(weights: Tensor, rows: Sequence[SampleRow]) -> Tensor:
    """The weight [rows, 1] under which top_k, top_p and min_p drop each row's tokens."""
    vocab = weights.shape[1]
    threshold = torch.zeros(len(rows), 1, dtype=weights.dtype)
    limited = [i for i, row in enumerate(rows) if 0 < row.controls.top_k < vocab]
    if limited:
        top_k = torch.tensor([rows[i].controls.top_k for i in limited])[:, None]
        threshold[limited] = _kth_best(weights[limited], top_k)
    nucleus = [i for i, row in enumerate(rows) if row.controls.top_p < 1]
    if nucleus:
        left = weights[nucleus]  # a copy
        left.masked_fill_(left < threshold[nucleus], 0)
        # A running sum adds in one order; that of a plain sum varies with the number of rows.
        total = left.cumsum(dim=-1)[:, -1:]
        mass = _column(rows[i].controls.top_p for i in nucleus) * total
        threshold[nucleus] = threshold[nucleus].maximum(_last_of_mass(left, mass))
    return threshold.maximum(_column(row.controls.min_p for row in rows))


def _kth_best(weights: Tensor, k: Tensor) -> Tensor:
    """The k-th largest of weights [rows, vocab], for k [rows, 1]."""
    return weights.topk(int(k.max()), dim=-1).values.gather(1, k - 1)


def _last_of_mass(weights: Tensor, mass: Tensor, look: int = FIRST_LOOK) -> Tensor:
    """The smallest of the best weights that together reach mass [rows, 1].

    Looks among the `look` best, which is much cheaper than sorting, and again among more for the
    rows where these do not reach it. The result does not depend on `look`.
    """
    vocab = weights.shape[1]
    ranked = weights.topk(min(look, vocab), dim=-1).values
    before = (ranked.cumsum(dim=-1) < mass).sum(dim=-1, keepdim=True)
    last = ranked.gather(1, before.clamp(max=ranked.shape[1] - 1))
    short = (before.squeeze(1) == look).nonzero().squeeze(1)
    if look < vocab and len(short):
        last[short] = _last_of_mass(weights[short], mass[short], 8 * look)
    return last


def _column(values: Iterable[float]) -> Tensor:
    return torch.tensor(list(values), dtype=torch.float64)[:, None]


# ── beside the draw ───────────────────────────────────────────────────────────────────────────


@torch.inference_mode()
def score(logits: Tensor, scored: Sequence[ScoredRow]) -> list[list[TokenLogprobs]]:
    """How likely the targets of each row are, by logits [targets of all rows, vocab].

    Raises RowFault with rows of the batch where logits are NaN or infinite at the top.
    """
    result: list[list[TokenLogprobs]] = []
    first = 0
    for row in scored:
        known: list[TokenLogprobs] = []
        for start in range(0, len(row.targets), SCORED_AT_ONCE):
            targets = row.targets[start : start + SCORED_AT_ONCE]
            part = logits[first + start : first + start + len(targets)]
            if not part.amax(dim=-1).isfinite().all():
                raise RowFault([row.row], "the model computed NaN or infinite logits")
            tokens = torch.tensor(targets)
            likely = _scores(part, tokens, [row.alternatives] * len(targets))
            ranks = _ranks(part, tokens)
            known += [replace(each, rank=rank) for each, rank in zip(likely, ranks, strict=True)]
        first += len(row.targets)
        result.append(known)
    return result


def _ranks(logits: Tensor, tokens: Tensor) -> list[int]:
    """The place of each row's token among all, by logits [rows, vocab]; the likeliest is 1."""
    better = logits > logits.gather(1, tokens[:, None])
    ranks: list[int] = (better.sum(dim=-1) + 1).tolist()
    return ranks


def _logprobs(
    logits: Tensor, tokens: Tensor, rows: Sequence[SampleRow]
) -> list[TokenLogprobs | None]:
    """The raw log-probabilities of `tokens` and of the best ones, for the rows that ask."""
    result: list[TokenLogprobs | None] = [None] * len(rows)
    asked = {i: row.controls.logprobs for i, row in enumerate(rows)}
    counts = {i: count for i, count in asked.items() if count is not None}
    if not counts:
        return result
    index = list(counts)
    known = _scores(logits[index], tokens[index], list(counts.values()))
    for i, each in zip(index, known, strict=True):
        result[i] = each
    return result


def _scores(logits: Tensor, tokens: Tensor, counts: Sequence[int]) -> list[TokenLogprobs]:
    """How likely each row's token is, and `counts` of the best, by logits [rows, vocab]."""
    logprobs = logits.double().log_softmax(dim=-1)
    chosen = logprobs.gather(1, tokens[:, None]).squeeze(1).tolist()
    best = logprobs.topk(min(max(counts), logits.shape[1]), dim=-1)
    values, ids = best.values.tolist(), best.indices.tolist()
    return [
        TokenLogprobs(chosen[i], tuple(zip(ids[i][:count], values[i][:count], strict=True)))
        for i, count in enumerate(counts)
    ]


def _candidates(logits: Tensor, rows: Sequence[SampleRow]) -> dict[int, list[Candidate]]:
    """How the rows of beam searches may go on.

    The controls edit log-probabilities here, not logits, as transformers' beam search has it: a
    forbidden token takes nothing from the others' scores.
    """
    index = [i for i, row in enumerate(rows) if row.controls.beams]
    if not index:
        return {}
    asking = [rows[i] for i in index]
    raw = logits[index].double().log_softmax(dim=-1)
    scores = raw.clone()
    _edit(scores, asking)
    count = min(max(row.controls.beams for row in asking), logits.shape[1])
    ids = torch.cat([scores.topk(count).indices, _going_on(scores, asking).topk(count).indices], 1)
    found = zip(ids.tolist(), *(x.gather(1, ids).tolist() for x in (scores, raw)), strict=True)
    return {
        i: best_of_both(row.controls.beams, [Candidate(*each) for each in zip(*one, strict=True)])
        for i, row, one in zip(index, asking, found, strict=True)
    }


def _going_on(scores: Tensor, rows: Sequence[SampleRow]) -> Tensor:
    """The scores without tokens that end the sequence."""
    ending = ending_cells(rows, scores.shape[1])
    if not len(ending):
        return scores
    scores = scores.clone()
    scores.view(-1).index_fill_(0, torch.from_numpy(ending), -torch.inf)
    return scores


def ending_cells(rows: Sequence[SampleRow], vocab: int) -> npt.NDArray[np.int64]:
    """The cells (see `edits`) of tokens that end the rows' sequences."""
    ending = enumerate(row.controls.ending_ids for row in rows)
    return cells(((i, token) for i, ids in ending for token in ids if token < vocab), vocab)


def best_of_both(count: int, candidates: list[Candidate]) -> list[Candidate]:
    """The first `count` of both halves, once each, best first, without what is forbidden."""
    half = len(candidates) // 2
    either = dict.fromkeys(candidates[:count] + candidates[half : half + count])
    return sorted((c for c in either if c.score > -math.inf), key=lambda c: -c.score)
