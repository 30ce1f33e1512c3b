"""The engine that serves, on a machine that takes virtual time."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from engine.backends.simulated import Noise
from engine.blocks import BlockPool
from engine.clock import VirtualClock
from engine.cost import LearningCost
from engine.decisions import DecisionSink, no_log
from engine.loop import Emit, Engine
from engine.outside import OUTSIDE, Outside
from engine.scheduler import Scheduler
from engine.simulation.machine import Machine
from engine.simulation.requests import Answering, Tokens, endless
from policies.base import Policy


def virtual_engine(
    policy: Policy,
    machine: Machine,
    clock: VirtualClock,
    emit: Emit,
    *,
    answers: Tokens = endless,
    noise: Noise | None = None,
    cost: LearningCost | None = None,
    log: DecisionSink = no_log,
    outside: Outside = OUTSIDE,
) -> Engine:
    """Make an engine whose steps let `clock` pass, as long as `machine` takes for them.

    emit: gets the outputs of each step. answers: which tokens are said. noise: by what factor steps
    take longer than the machine's cost. cost: what predicts them; None: the machine's own.
    """
    scheduler = Scheduler(
        policy,
        BlockPool(machine.blocks),
        machine.limits,
        guard=machine.guard,
        log=log,
        prefix_cache=machine.prefix_cache,
        allocation=machine.allocation,
        relief=machine.relief,
        cpu_clock=_no_cpu_time,
        outside=outside,
    )
    backend = Answering(
        machine.cost,
        machine.blocks,
        clock,
        clock.advance,
        answers=answers,
        host_blocks=machine.host_blocks,
        move_seconds=machine.move_seconds,
        noise=noise,
    )
    return Engine(
        scheduler=scheduler,
        backend=backend,
        clock=clock,
        cost=machine.cost if cost is None else cost,
        emit=emit,
        depth=machine.depth,
    )


@contextmanager
def collecting_seldom() -> Iterator[None]:
    """Look for cycles seldom: a step leaves none, and a fifth of the time went into looking."""
    before = gc.get_threshold()
    gc.set_threshold(100_000, 20, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _no_cpu_time() -> float:
    """In virtual time a policy takes none, or runs would differ from machine to machine."""
    return 0.0
