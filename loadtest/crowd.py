"""Full rows, a crowd behind them, and turns in which one comes, one leaves and one is let in."""

from __future__ import annotations

import gc
import itertools
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from engine.batch import BLOCK
from engine.blocks import BlockPool, blocks_for
from engine.clock import VirtualClock
from engine.controls import RowControls, Sampled
from engine.cost import LinearCost
from engine.guard import GuardSettings
from engine.inbox import Submission
from engine.limits import Limits
from engine.prefix import block_keys
from engine.scheduler import Scheduler
from engine.simulation import PolicyMaker
from policies.base import Services

PROMPT: Final = 32
"""Prompt tokens of everybody."""

GENERATED: Final = 256
"""Tokens that everybody may generate; who leaves has not generated all of them."""

STEP_S: Final = 0.01

GREEDY: Final = RowControls(temperature=0.0)
COST: Final = LinearCost(base=0.004, prompt_token=1e-6, decode=1e-5)


@dataclass(frozen=True, slots=True)
class Shape:
    """How a crowd is made.

    tenants: whether each is a tenant of its own. priorities: how many there are, in turn.
    shared: tokens that most prompts begin with. They are others for each tenth power of numbers,
    so that when a crowd has grown tenfold nearly all of it waits behind a prefix that nobody has
    computed yet.
    """

    name: str
    tenants: bool = False
    priorities: int = 3
    shared: int = 0


@lru_cache(maxsize=120_000)
def submission_of(shape: Shape, number: int) -> Submission:
    """The `number`-th of a crowd, which comes a moment after the one before; it has time."""
    own = range(number * PROMPT, number * PROMPT + PROMPT - shape.shared)
    first = 10**9 + len(str(number)) * PROMPT
    prompt = [*range(first, first + shape.shared), *own]
    return Submission(
        id=number,
        prompt=prompt,
        max_tokens=GENERATED,
        controls=GREEDY,
        arrival=number * 1e-6,
        tenant=f"tenant {number}" if shape.tenants else "default",
        priority=number % shape.priorities,
        ttft_deadline=1e6 + number * 1e-6,
        prompt_keys=block_keys(prompt, b""),
    )


ONE_FLOW: Final = Shape("one flow")
MANY_FLOWS: Final = Shape("a flow each", tenants=True)
ROWS_FILLING: Final = Shape("rows", priorities=1)
COMMON_PREFIX: Final = Shape("one cold prefix", shared=BLOCK)


class Crowd:
    """A scheduler with `rows` requests that decode, or as many as the policy lets in, and a crowd
    that waits."""

    def __init__(
        self, make: PolicyMaker, shape: Shape, rows: int, guard: GuardSettings | None = None
    ) -> None:
        blocks = rows * blocks_for(PROMPT + GENERATED) + rows
        self._shape = shape
        self._rows = rows
        self._clock = VirtualClock()
        self._numbers = itertools.count(1)
        self.scheduler = Scheduler(
            make(services=Services(COST, random.Random(0))),
            BlockPool(blocks),
            Limits(rows * PROMPT, rows, PROMPT + GENERATED),
            guard=guard,
        )
        for _ in range(rows):
            self._submit(ROWS_FILLING)
        for _ in range(4 * rows):
            if len(self.scheduler.roster.decoding) == rows:
                return
            self._compute()

    def fill(self, waiting: int) -> None:
        """Let more come until so many wait."""
        with _collecting_later():
            while self.scheduler.roster.waiting.requests < waiting:
                self._submit(self._shape)

    def turn(self) -> float:
        """One comes, one leaves, and a step is planned and done; CPU seconds of the scheduler."""
        running = self.scheduler.roster.running
        leaving = next(iter(running.values()), None)
        submission = submission_of(self._shape, next(self._numbers))
        started = time.thread_time()
        self.scheduler.submit(submission, self._clock.now())
        if leaving is not None:
            tokens = max(1, leaving.sequences[0].generated)
            self.scheduler.finish(leaving.id, 0, tokens, self._clock.now())
        came = time.thread_time() - started
        return came + self._compute()

    def _submit(self, shape: Shape) -> None:
        self.scheduler.submit(submission_of(shape, next(self._numbers)), self._clock.now())

    def _compute(self) -> float:
        """One step in which every row samples token 0; CPU seconds without launching it."""
        scheduler, now = self.scheduler, self._clock.now()
        began = time.thread_time()
        plan = scheduler.schedule(now)
        planned = time.thread_time() - began
        if plan.rows:
            flight = scheduler.launch(plan, packed=False)
            count = len(flight.sampling)
            began = time.thread_time()
            scheduler.land(flight, Sampled([0] * count, [None] * count), now)
            scheduler.step_done(0.0, 0.0)
            planned += time.thread_time() - began
        scheduler.take_outputs()
        self._clock.advance(STEP_S)
        return planned


@contextmanager
def _collecting_later() -> Iterator[None]:
    """No collection of garbage: among so many new objects there is none."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
