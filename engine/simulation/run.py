"""Requests through the real scheduler, guard and policy in virtual time.

The engine, the scheduler and the policy are those that serve; only the clock and the backend are
others: a step takes what a cost model says, and nobody waits for it. The same arguments give the
same result, to the last bit.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from engine.clock import VirtualClock
from engine.decisions import DecisionSink, no_log
from engine.loop import Emit
from engine.outputs import Look, Output
from engine.outside import OUTSIDE, Outside
from engine.replay import replay
from engine.scheduler import Scheduler
from engine.simulation.answers import NamedAnswers
from engine.simulation.arrival import Arrival
from engine.simulation.engine import collecting_seldom, virtual_engine
from engine.simulation.machine import Machine
from engine.simulation.records import NO_TARGETS, Record, Simulation, Targets
from engine.simulation.requests import AnswersThatEnd, Tokens, endless, submissions
from engine.simulation.scatter import Scatter
from engine.simulation.tally import Tally
from engine.simulation.usage import Usage
from engine.simulation.watch import Watch
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
    noise = scatter or machine.noise_of(seed)
    tally = Tally(machine.cost)
    clock = VirtualClock()
    chosen = policy(services=Services(machine.cost, random.Random(seed)))
    engine = virtual_engine(
        chosen,
        machine,
        clock,
        watch.emitted,
        answers=_answers(records),
        noise=noise,
        cost=machine.cost if noise is None else tally,
        log=watch.decided,
        outside=_outside(records),
    )
    scheduler = engine.scheduler
    if usage is not None:
        engine.emit = _told_as_well(watch.emitted, usage, scheduler)
    with collecting_seldom():
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


def _told_as_well(emit: Emit, usage: Usage, scheduler: Scheduler) -> Emit:
    def both(outputs: Sequence[Output], look: Look) -> None:
        emit(outputs, look)
        usage.after(scheduler, look)

    return both


def _outside(records: Sequence[Record]) -> Outside:
    """Names blocks of answers as the trace does, if it does."""
    named = any(each.arrival.prefix and each.arrival.prefix.answer for each in records)
    return NamedAnswers(records) if named else OUTSIDE


def _answers(records: Sequence[Record]) -> Tokens:
    """Looks at each answer only where some end before their maximum."""
    arrivals = [record.arrival for record in records]
    if all(each.asked_tokens == each.output_tokens for each in arrivals):
        return endless
    return AnswersThatEnd([each.output_tokens for each in arrivals])
