"""Engines whose steps take what a cost model says, for tests of policies that look at time.

The same model is the policy's: its predictions are exact.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from engine.backends.scripted import ScriptedBackend, echo
from engine.cost import LinearCost, StepShape
from engine.step import StepProxy
from policies.base import Policy, Services
from support.engines import NO_CPU_LIMIT, Harness

UNGUARDED = replace(NO_CPU_LIMIT, enabled=False)
"""A policy's own bounds are tested without the guard's."""


class TimedHarness(Harness):
    """A harness in which time passes only while steps are computed."""

    def step(self) -> bool:
        mail, self.mail = self.mail, []
        worked = self.engine.step(mail)
        self.scheduler.check()
        if not worked:
            self.clock.advance(0.001)
        return worked

    def view(self) -> StepProxy:
        """The step that would be planned next."""
        return StepProxy(self.scheduler.roster, len(self.backend.batches), self.clock.now())


class TimedBackend(ScriptedBackend):
    """The scripted backend, with a clock that goes on by what `cost` says of each step."""

    def __init__(self, total_blocks: int, cost: LinearCost) -> None:
        super().__init__(total_blocks, echo)
        self.cost = cost
        self.advance: Callable[[float], None]

    def collect(self, ticket: int) -> Any:
        sampled = super().collect(ticket)
        self.advance(self.cost.of(StepShape.of(self.batches[ticket].rows)))
        return sampled


def simulated(
    cost: LinearCost, *, policy: Callable[..., Policy], blocks: int = 64, **setup: Any
) -> TimedHarness:
    """A harness over `cost`, unguarded unless `setup` says otherwise."""
    backend = TimedBackend(blocks, cost)
    setup.setdefault("guard", UNGUARDED)

    def made(*, services: Services) -> Policy:
        return policy(services=Services(cost=cost, rng=random.Random(0)))

    harness = TimedHarness(policy=made, backend=backend, blocks=blocks, **setup)
    backend.advance = harness.clock.advance
    return harness
