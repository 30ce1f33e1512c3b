"""Requests through the real scheduler, guard and policy in virtual time.

The engine, the scheduler and the policy are those that serve; only the clock and the backend are
others: a step takes what a cost model says, and nobody waits for it. The same arguments give the
same result, to the last bit.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, Protocol

from engine.backends.simulated import Noise, SimulatedBackend
from engine.blocks import BlockPool
from engine.clock import VirtualClock
from engine.decisions import DecisionSink, no_log
from engine.loop import Engine
from engine.outputs import Look, Output
from engine.outside import OUTSIDE, Outside
from engine.replay import replay
from engine.scheduler import Scheduler
from loadtest.simulation.answers import NamedAnswers
from loadtest.simulation.machine import Machine
from loadtest.simulation.records import NO_TARGETS, Record, Simulation, Targets
from loadtest.simulation.requests import Answering, AnswersThatEnd, endless, submissions
from loadtest.simulation.scatter import Scatter
from loadtest.simulation.tally import Tally
from loadtest.simulation.usage import Usage
from loadtest.simulation.watch import Watch
from loadtest.traces import Arrival
from policies.base import Policy, Services

NO_WEIGHTS: Final[Mapping[str, float]] = {}


class PolicyMaker(Protocol):
    """Makes a fresh policy: its class, or a partial of it."""

    def __call__(self, *, services: Services) -> Policy: ...


def simulate(
    policy: PolicyMaker,
    arrivals: Sequence[Arrival],
    machine: Machine,
    *,
    targets: Mapping[str, Targets] | None = None,
    weights: Mapping[str, float] = NO_WEIGHTS,
    seed: int = 0,
    log: DecisionSink = no_log,
    tick: Callable[[], None] = lambda: None,
    scatter: Scatter | None = None,
    usage: Usage | None = None,
) -> Simulation:
    """Let the requests of a trace run under a policy until all have ended.

    arrivals: in order of arrival. targets: by class; a class without any was promised nothing.
    weights: of tenants; "default" stands for all others. seed: of the policy's and the noise's
    random numbers. log: gets the decisions. tick: called once for every request that has ended.
    scatter: of the steps' times, in place of the machine's noise. usage: is told of every step.
    Raises ValueError for a machine without room for a block.
    """
    promised = targets or {}
    records = [Record(each, promised.get(each.slo_class, NO_TARGETS)) for each in arrivals]
    watch = Watch(records, log, tick)
    clock = VirtualClock()
    chosen = policy(services=Services(machine.cost, random.Random(seed)))
    scheduler = Scheduler(
        chosen,
        BlockPool(machine.blocks),
        machine.limits,
        guard=machine.guard,
        log=watch.decided,
        prefix_cache=machine.prefix_cache,
        allocation=machine.allocation,
        relief=machine.relief,
        cpu_clock=_no_cpu_time,
        outside=_outside(records),
    )

    def emit(outputs: Sequence[Output], look: Look) -> None:
        watch.emitted(outputs, look)
        if usage is not None:
            usage.after(scheduler, look)

    noise = scatter or machine.noise_of(seed)
    tally = Tally(machine.cost)
    engine = Engine(
        scheduler=scheduler,
        backend=_backend(machine, records, clock, noise),
        clock=clock,
        cost=machine.cost if noise is None else tally,
        emit=watch.emitted if usage is None else emit,
        depth=machine.depth,
    )
    with _collecting_seldom():
        replay(engine, clock, submissions(records, weights, scatter.arrived if scatter else None))
    scheduler.check()
    return Simulation(
        records=records,
        counters=scheduler.counters,
        forced_admissions=scheduler.guard.forced_admissions,
        policy_faults=dict(scheduler.guard.saves),
        policy=chosen,
        prediction_error=tally.error,
        queue_seconds=scheduler.queue_time.seconds,
    )


def _outside(records: Sequence[Record]) -> Outside:
    """Names blocks of answers as the trace does, if it does."""
    named = any(each.arrival.prefix and each.arrival.prefix.answer for each in records)
    return NamedAnswers(records) if named else OUTSIDE


def _backend(
    machine: Machine,
    records: Sequence[Record],
    clock: VirtualClock,
    noise: Noise | None,
) -> SimulatedBackend:
    """The device, which looks at each answer only where some end before their maximum."""
    some_end = any(each.arrival.asked_tokens > each.arrival.output_tokens for each in records)
    return Answering(
        machine.cost,
        machine.blocks,
        clock,
        clock.advance,
        answers=AnswersThatEnd(records) if some_end else endless,
        host_blocks=machine.host_blocks,
        move_seconds=machine.move_seconds,
        noise=noise,
    )


@contextmanager
def _collecting_seldom() -> Iterator[None]:
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
