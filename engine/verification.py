"""Which samples of a row hold that verified guesses (`engine.speculation`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.controls import Sampled, TokenLogprobs
from engine.plan import Flight
from engine.request import Sequence as EngineSequence


@dataclass(frozen=True, slots=True)
class Run:
    """Samples of one row up to the first that is no guess. logprobs: one for each, or None."""

    tokens: list[int]
    logprobs: Sequence[TokenLogprobs | None]

    def first(self, count: int) -> Run:
        """The first `count` of them."""
        return Run(self.tokens[:count], self.logprobs[:count])

    def until(self, ending: frozenset[int]) -> Run:
        """Those up to the first that ends a sequence."""
        for place, token in enumerate(self.tokens):
            if token in ending:
                return self.first(place + 1)
        return self


def runs_of(flight: Flight, sampled: Sampled) -> dict[EngineSequence, Run]:
    """What holds of each row that verified guesses."""
    drafts, runs = flight.plan.drafts, {}
    first = 0
    for sequence, samples in zip(flight.sequences, flight.batch.rows.samples, strict=True):
        draft = drafts.get(sequence)
        if draft is not None:
            tokens = list(sampled.tokens[first : first + 1 + len(draft)])
            right = 0
            while right < len(draft) and draft[right] == tokens[right]:
                right += 1
            runs[sequence] = Run(tokens[: right + 1], sampled.logprobs[first : first + right + 1])
            first += len(draft)
        first += samples
    return runs


def one_a_row(flight: Flight, sampled: Sampled) -> tuple[list[int], list[TokenLogprobs | None]]:
    """The first sample of each row that samples, and its logprobs, without those behind guesses."""
    tokens, logprobs = [], []
    drafts = flight.plan.drafts
    first = 0
    for sequence, samples in zip(flight.sequences, flight.batch.rows.samples, strict=True):
        if samples:
            tokens.append(sampled.tokens[first])
            logprobs.append(sampled.logprobs[first])
            first += 1 + len(drafts.get(sequence, ()))
    return tokens, logprobs
