"""Beam search: which continuations of several sequences go on, which are kept, when it is over.

The rules are those of transformers 5 (`generate(num_beams=width, do_sample=False)`), so that the
same model gives the same sequences in the same order:

    all continuations of all beams, best sum of log-probabilities first
      c0 c1 c2 | c3 c4 c5 …         the first `width`     those that end a sequence are hypotheses
      c0    c2   c3                 the rest of all       the best `width` of them are the new beams

A hypothesis scores sum / length ** length_penalty; its length counts generated tokens, the one
that ended it included. The best `width` hypotheses are kept. Pure arithmetic, without requests or
blocks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from engine.controls import Candidate, TokenLogprobs

MAX_PENALTY = 10.0
"""Largest length_penalty, either way: scores stay finite at any length."""


@dataclass(frozen=True, slots=True)
class BeamSearch:
    """What is searched for.

    width: beams. length_penalty: above 0 favours long hypotheses, below 0 short ones.
    early_stopping: when a search that has `width` hypotheses is over. True: at once. False: when
    the best beam, as long as it is now, scores no better than the worst of them. "never": when it
    could not even score better at any length that it may reach.
    Raises ValueError for a width below 1 and a penalty beyond
    MAX_PENALTY either way.
    """

    width: int
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False

    def __post_init__(self) -> None:
        if self.width < 1:
            raise ValueError(f"a beam search needs at least one beam, not {self.width}")
        if not -MAX_PENALTY <= self.length_penalty <= MAX_PENALTY:
            raise ValueError(f"length_penalty {self.length_penalty} is beyond {MAX_PENALTY}")


@dataclass(slots=True)
class Beam:
    """How a sequence that may go on scores.

    score: the sum of its log-probabilities. logprobs: what is reported of its tokens, if anything
    is. candidates: how it could go on, None until its row has landed; report: the row's
    log-probabilities.
    """

    score: float = 0.0
    logprobs: tuple[TokenLogprobs, ...] = ()
    candidates: Sequence[Candidate] | None = None
    report: TokenLogprobs | None = None

    def forget(self) -> None:
        """The row has to be computed again."""
        self.candidates = self.report = None

    def reported(self, candidate: Candidate) -> tuple[TokenLogprobs, ...]:
        """What is reported of its tokens once it has gone on with a candidate."""
        if self.report is None:
            return ()
        return (*self.logprobs, TokenLogprobs(candidate.logprob, self.report.top))


@dataclass(frozen=True, slots=True)
class Continuation:
    """One candidate of the beam at place `parent`, and the sum of log-probabilities with it."""

    parent: int
    candidate: Candidate
    score: float


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A complete sequence: its generated tokens, and the stop token that ended it, if one did."""

    tokens: tuple[int, ...]
    score: float
    stop_token: int | None
    logprobs: tuple[TokenLogprobs, ...]


class Search:
    """One request's search. stop_ids end a sequence, and so do `max_tokens` tokens."""

    def __init__(self, settings: BeamSearch, max_tokens: int, stop_ids: frozenset[int]) -> None:
        self.settings = settings
        self.max_tokens = max_tokens
        self.stop_ids = stop_ids
        self.hypotheses: list[Hypothesis] = []

    def advance(
        self, beams: Sequence[Beam], generated: Sequence[Sequence[int]]
    ) -> list[Continuation]:
        """Choose the next beams, best first; none if the search is over.

        beams: those that run, each with its candidates, the best beam first where they tie.
        generated: what each of them has generated, all of them equally much.
        """
        length = len(generated[0]) + 1
        ranked = [
            Continuation(place, candidate, beam.score + candidate.score)
            for place, beam in enumerate(beams)
            for candidate in beam.candidates or ()
        ]
        ranked.sort(key=lambda one: -one.score)
        for one in ranked[: self.settings.width]:
            if self._ends(one, length):
                tokens = (*generated[one.parent], one.candidate.token)
                self._keep(one, tokens, beams[one.parent].reported(one.candidate))
        going_on = [one for one in ranked if not self._ends(one, length)][: self.settings.width]
        if not going_on or self._is_over(going_on[0].score, length):
            return []
        return going_on

    def best(self, count: int) -> list[Hypothesis]:
        """The best hypotheses, best first.

        Where the controls leave fewer different ones than that, the last is repeated.
        """
        missing = count - len(self.hypotheses)
        return [*self.hypotheses, *self.hypotheses[-1:] * missing][:count]

    def _ends(self, one: Continuation, length: int) -> bool:
        return length >= self.max_tokens or one.candidate.token in self.stop_ids

    def _keep(
        self, one: Continuation, tokens: tuple[int, ...], logprobs: tuple[TokenLogprobs, ...]
    ) -> None:
        """Add a hypothesis, if it is among the best."""
        stop_token = one.candidate.token if one.candidate.token in self.stop_ids else None
        score = one.score / math.pow(len(tokens), self.settings.length_penalty)
        self.hypotheses.append(Hypothesis(tokens, score, stop_token, logprobs))
        self.hypotheses.sort(key=lambda each: -each.score)
        del self.hypotheses[self.settings.width :]

    def _is_over(self, best: float, length: int) -> bool:
        """Whether the beams, the best of which sums up to `best`, have nothing to win any more."""
        settings = self.settings
        if len(self.hypotheses) < settings.width:
            return False
        if settings.early_stopping is True:
            return True
        if settings.early_stopping == "never" and settings.length_penalty > 0:
            length = self.max_tokens
        return best / math.pow(length, settings.length_penalty) <= self.hypotheses[-1].score
