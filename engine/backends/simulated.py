"""A backend without a model: every step takes the time that a cost model says."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from engine.batch import Batch
from engine.clock import VirtualClock
from engine.controls import Sampled, SampleRow, TokenLogprobs
from engine.cost import LinearCost, StepShape


def alphabet(row: SampleRow) -> int:
    """The default text: the letters a to z over and over, as byte values."""
    return 97 + (row.position - row.prompt_length) % 26


class SimulatedBackend:
    """Waits as long as `cost` predicts, for real or on a virtual clock.

    wait: how a step's seconds pass: `time.sleep`, or a virtual clock's `advance`.
    token: which id is "sampled" for a row; controls are ignored, except that logprobs asked for
    are there (all zero: the token was certain).
    """

    def __init__(
        self,
        cost: LinearCost,
        total_blocks: int,
        wait: Callable[[float], None] = time.sleep,
        token: Callable[[SampleRow], int] = alphabet,
    ) -> None:
        self._cost = cost
        self._total_blocks = total_blocks
        self._wait = wait
        self._token = token
        self._sampled: dict[int, Sampled] = {}

    @classmethod
    def virtual(cls, cost: LinearCost, total_blocks: int, clock: VirtualClock) -> SimulatedBackend:
        """Steps that take no real time and let `clock` pass instead."""
        return cls(cost, total_blocks, wait=clock.advance)

    @property
    def total_blocks(self) -> int:
        return self._total_blocks

    def submit(self, batch: Batch) -> int:
        seconds = self._cost.of(StepShape.of(batch))
        if seconds > 0:
            self._wait(seconds)
        return batch.step

    def sample(self, ticket: int, rows: Sequence[SampleRow]) -> None:
        tokens = [self._token(row) for row in rows]
        logprobs = [
            None if row.controls.logprobs is None else TokenLogprobs(0.0, ((token, 0.0),))
            for row, token in zip(rows, tokens, strict=True)
        ]
        self._sampled[ticket] = Sampled(tokens, logprobs)

    def collect(self, ticket: int) -> Sampled:
        return self._sampled.pop(ticket)

    def close(self) -> None:
        """Nothing is held."""
