"""A backend without a model: every step takes the time that a cost model says."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence

from engine.batch import Batch, StepShape
from engine.clock import Clock, MonotonicClock, VirtualClock
from engine.controls import Candidate, Sampled, SampleRow, ScoredRow, TokenLogprobs
from engine.cost import LinearCost
from engine.grammar import allows, first_allowed

Noise = Callable[[StepShape, float], float]
"""By what factor a step of this shape that starts at this time takes longer than predicted."""


def alphabet(row: SampleRow) -> int:
    """The default text: the letters a to z over and over, as byte values."""
    return 97 + (row.position - row.prompt_length) % 26


class SimulatedBackend:
    """A device that computes steps one after the other, each as long as `cost` predicts.

    clock: tells when a step is submitted. wait: how time passes until a result is there:
    `time.sleep`, or a virtual clock's `advance`. token: which id is "sampled" for a row; controls
    are ignored, except that logprobs asked for are there (all zero: the token was certain), that
    the beams of a beam search go on with that token and the next ids, and that under a grammar a
    token which is not allowed gives way to the first that is.
    host_blocks: blocks that can be offloaded; each move, there or back, takes `move_seconds`.
    noise: by what factor a step of this shape, started then, takes longer than predicted.
    """

    reads_arrays = False

    def __init__(
        self,
        cost: LinearCost,
        total_blocks: int,
        clock: Clock | None = None,
        wait: Callable[[float], None] = time.sleep,
        token: Callable[[SampleRow], int] = alphabet,
        *,
        host_blocks: int = 0,
        move_seconds: float = 0.0,
        noise: Noise | None = None,
    ) -> None:
        self._cost = cost
        self._total_blocks = total_blocks
        self._clock = clock or MonotonicClock()
        self._wait = wait
        self._token = token
        self._host_blocks = host_blocks
        self._move_seconds = move_seconds
        self._noise = noise
        self._free_at = 0.0
        self._done_at: dict[int, float] = {}
        self._rows: dict[int, Collection[SampleRow]] = {}
        self._scored: dict[int, Sequence[ScoredRow]] = {}

    @classmethod
    def virtual(
        cls,
        cost: LinearCost,
        total_blocks: int,
        clock: VirtualClock,
        *,
        host_blocks: int = 0,
        move_seconds: float = 0.0,
        noise: Noise | None = None,
    ) -> SimulatedBackend:
        """Steps that take no real time and let `clock` pass instead."""
        return cls(
            cost,
            total_blocks,
            clock,
            wait=clock.advance,
            host_blocks=host_blocks,
            move_seconds=move_seconds,
            noise=noise,
        )

    @property
    def total_blocks(self) -> int:
        return self._total_blocks

    @property
    def host_blocks(self) -> int:
        return self._host_blocks

    @property
    def move_seconds(self) -> float:
        return self._move_seconds

    def submit(self, batch: Batch) -> int:
        started = max(self._clock.now(), self._free_at)
        seconds = self._cost.of(batch.shape)
        if self._noise is not None:
            seconds *= self._noise(batch.shape, started)
        moving = self._move_seconds * (len(batch.offloads) + len(batch.restores))
        self._free_at = started + moving + seconds
        self._done_at[batch.step] = self._free_at
        self._scored[batch.step] = batch.scored
        return batch.step

    def sample(self, ticket: int, rows: Collection[SampleRow]) -> None:
        self._rows[ticket] = rows

    def collect(self, ticket: int) -> Sampled:
        left = self._done_at.pop(ticket) - self._clock.now()
        if left > 0:
            self._wait(left)
        return self._sampled(self._rows.pop(ticket), self._scored.pop(ticket))

    def _sampled(self, sampling: Collection[SampleRow], scored: Sequence[ScoredRow]) -> Sampled:
        """What is "sampled" for the rows of a step."""
        rows = list(sampling)
        tokens = [self._choose(row) for row in rows]
        logprobs = [
            None if row.controls.logprobs is None else _certain(token)
            for row, token in zip(rows, tokens, strict=True)
        ]
        candidates = {
            i: [Candidate(token + k, -float(k), -float(k)) for k in range(row.controls.beams)]
            for i, (row, token) in enumerate(zip(rows, tokens, strict=True))
            if row.controls.beams
        }
        prompts = [[_certain(token) for token in row.targets] for row in scored]
        return Sampled(tokens, logprobs, candidates, prompts)

    def _choose(self, row: SampleRow) -> int:
        """The token of the text, or the first that the row's mask allows."""
        token = self._token(row)
        if row.mask is None or allows(row.mask, token):
            return token
        return first_allowed(row.mask)

    def close(self) -> None:
        """Nothing is held."""


def _certain(token: int) -> TokenLogprobs:
    return TokenLogprobs(0.0, ((token, 0.0),), rank=1)
