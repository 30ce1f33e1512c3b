"""Replaying submissions: who arrives when is mailed when, and idle time costs nothing."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from support.engines import NO_CPU_LIMIT

from engine.backends.simulated import SimulatedBackend
from engine.blocks import BlockPool
from engine.clock import VirtualClock
from engine.controls import RowControls
from engine.cost import LinearCost
from engine.inbox import Submission
from engine.limits import Limits
from engine.loop import Engine
from engine.outputs import Look, Output
from engine.replay import replay
from engine.scheduler import Scheduler
from policies.base import Heads, Hold, Policy, Services, StepView
from policies.fcfs import FCFS

COST = LinearCost(base=1.0, prompt_token=0.1, decode=0.5)


class Run:
    """An engine in virtual time, and when each request got each of its tokens."""

    def __init__(self, policy: type[Policy] = FCFS, depth: int = 0) -> None:
        self.clock = VirtualClock()
        self.tokens: dict[int, list[float]] = {}
        self.scheduler = Scheduler(
            policy(services=Services(COST, random.Random(0))),
            BlockPool(64),
            Limits(step_tokens=64, rows=8, model_len=512),
            guard=NO_CPU_LIMIT,
        )
        self.engine = Engine(
            scheduler=self.scheduler,
            backend=SimulatedBackend.virtual(COST, 64, self.clock),
            clock=self.clock,
            cost=COST,
            emit=self._take,
            depth=depth,
        )

    def _take(self, outputs: Sequence[Output], look: Look) -> None:
        for output in outputs:
            self.tokens.setdefault(output.request, []).append(output.at)

    def replay(self, *arrivals: tuple[float, int, int]) -> dict[int, list[float]]:
        """Requests as (arrival, prompt, output), and the times of their tokens."""
        replay(
            self.engine,
            self.clock,
            (
                Submission(n, range(100 * n, 100 * n + p), o, RowControls(), at)
                for n, (at, p, o) in enumerate(arrivals)
            ),
        )
        return self.tokens


def test_an_empty_trace_ends_at_once() -> None:
    run = Run()
    assert run.replay() == {}
    assert run.clock.now() == 0


def test_idle_time_passes_at_once_and_exactly_to_the_next_arrival() -> None:
    run = Run()
    tokens = run.replay((0.1, 10, 1), (1e6 + 0.1, 10, 1))
    assert tokens == {0: [pytest.approx(2.1)], 1: [pytest.approx(1e6 + 2.1)]}
    assert run.scheduler.counters.steps == 2


def test_who_arrives_during_a_step_is_in_the_mail_of_the_next() -> None:
    tokens = Run().replay((0.0, 10, 2), (1.0, 10, 1))
    # a step of ten prompt tokens takes 2 s, one that decodes the first beside the second 2.5 s
    assert tokens == {0: [2.0, 4.5], 1: [4.5]}


def test_with_a_step_in_flight_the_next_is_planned_at_its_start() -> None:
    tokens = Run(depth=1).replay((0.0, 10, 3), (1.0, 10, 1))
    # at 0 both the prompt and the first decode are submitted: the second request comes after them
    assert tokens == {0: [2.0, 3.5, 6.0], 1: [6.0]}


class Late(Policy):
    """Holds everybody until 3.25 s."""

    def pick(self, heads: Heads, step: StepView) -> object:
        return Hold(3.25) if step.now < 3.25 else heads.best()


def test_a_hold_ends_when_it_says_in_virtual_time() -> None:
    """To the millisecond that an engine waits for mail at least."""
    assert Run(Late).replay((2.5, 10, 1)) == {0: [pytest.approx(5.25, abs=0.0011)]}


def test_requests_out_of_order_are_refused() -> None:
    with pytest.raises(ValueError, match="request 1 arrives before request 0"):
        Run().replay((2.0, 10, 1), (1.0, 10, 1))
