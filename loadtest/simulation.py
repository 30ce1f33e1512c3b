"""Requests through the real scheduler, guard and policy in virtual time.

The engine, the scheduler and the policy are those that serve; only the clock and the backend are
others: a step takes what a cost model says, and nobody waits for it. The same arguments give the
same result, to the last bit.
"""

from __future__ import annotations

import gc
import math
import random
from array import array
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from engine.backends.simulated import SimulatedBackend
from engine.batch import BLOCK
from engine.blocks import BlockPool
from engine.clock import VirtualClock
from engine.controls import RowControls, Sampled, SampleRow, ScoredRow
from engine.cost import LinearCost
from engine.decisions import DecisionSink, no_log
from engine.guard import GuardSettings
from engine.inbox import Submission
from engine.limits import ClassLimits, Limits
from engine.loop import Engine
from engine.outputs import Counters, FinishReason, Look, Output
from engine.prefix import KEY_BYTES
from engine.replay import replay
from engine.scheduler import Scheduler
from loadtest.traces import Arrival
from policies.base import Policy, Services

GREEDY = RowControls(temperature=0.0, ignore_eos=True)


class PolicyMaker(Protocol):
    """Makes a fresh policy: its class, or a partial of it."""

    def __call__(self, *, services: Services) -> Policy: ...


@dataclass(frozen=True, slots=True)
class Targets:
    """What a request of a class was promised, in seconds; inf is nothing.

    ttft: from arrival to the first token; tpot: a token after the first, on average; e2e: from
    arrival to the last token. The first two are what policies see as deadline and target.
    """

    ttft: float = math.inf
    tpot: float = math.inf
    e2e: float = math.inf


NO_TARGETS = Targets()
DEFAULT_GUARD = GuardSettings()


@dataclass(frozen=True, slots=True)
class Machine:
    """What requests run on.

    cost: seconds of a step; the policy predicts with the same coefficients. pool_tokens: what the
    KV cache holds; step_tokens, rows: what a step may compute. noise: how steps scatter, as the
    standard deviation of the logarithm of a factor whose mean is one.
    """

    cost: LinearCost
    pool_tokens: int = 10_000
    step_tokens: int = 2048
    rows: int = 256
    classes: Mapping[str, ClassLimits] = field(default_factory=dict)
    guard: GuardSettings = DEFAULT_GUARD
    prefix_cache: bool = True
    depth: int = 0
    noise: float = 0.0

    @property
    def blocks(self) -> int:
        return self.pool_tokens // BLOCK

    @property
    def limits(self) -> Limits:
        """Requests may be as long as the pool; the last token generated needs no KV."""
        return Limits(self.step_tokens, self.rows, self.blocks * BLOCK + 1, self.classes)


@dataclass(slots=True)
class Record:
    """What became of one request. Times in seconds from the first arrival of the trace.

    admitted_at: when it was first admitted; None if it never was. token_times: when each of its
    tokens was known. shed: why it was refused, None if it was not. cached_tokens: prompt tokens
    found in the prefix cache when it was first admitted.
    """

    arrival: Arrival
    targets: Targets
    admitted_at: float | None = None
    token_times: array[float] = field(default_factory=lambda: array("d"))
    shed: str | None = None
    preemptions: int = 0
    recomputed_tokens: int = 0
    cached_tokens: int = 0

    @property
    def completed(self) -> bool:
        """Whether it got all its tokens."""
        return len(self.token_times) == self.arrival.output_tokens

    @property
    def ttft(self) -> float:
        """From arrival to the first token."""
        return self.token_times[0] - self.arrival.at

    @property
    def e2e(self) -> float:
        """From arrival to the last token."""
        return self.token_times[-1] - self.arrival.at

    @property
    def tpot(self) -> float:
        """Mean time of a token after the first; 0 if there is none."""
        after = len(self.token_times) - 1
        return (self.token_times[-1] - self.token_times[0]) / after if after else 0.0

    @property
    def met(self) -> bool:
        """Whether it was completed within all its targets."""
        targets = self.targets
        return (
            self.completed
            and self.ttft <= targets.ttft
            and self.tpot <= targets.tpot
            and self.e2e <= targets.e2e
        )


@dataclass(frozen=True, slots=True)
class Simulation:
    """A simulated run: its requests in order of arrival, and the engine's counts at the end."""

    records: Sequence[Record]
    counters: Counters
    forced_admissions: int
    policy_faults: Mapping[str, int]


def simulate(
    policy: PolicyMaker,
    arrivals: Sequence[Arrival],
    machine: Machine,
    *,
    targets: Mapping[str, Targets] | None = None,
    seed: int = 0,
    log: DecisionSink = no_log,
    tick: Callable[[], None] = lambda: None,
) -> Simulation:
    """Let the requests of a trace run under a policy until all have ended.

    arrivals: in order of arrival. targets: by class; a class without any was promised nothing.
    seed: of the policy's and the noise's random numbers. log: gets the decisions. tick: called once
    for every request that has ended. Raises ValueError for a machine without room for a block.
    """
    clock = VirtualClock()
    backend = _Wordless.virtual(
        machine.cost, machine.blocks, clock, noise=_noise(machine.noise, seed)
    )
    promised = targets or {}
    records = [Record(each, promised.get(each.slo_class, NO_TARGETS)) for each in arrivals]
    watch = _Watch(records, log, tick)
    scheduler = Scheduler(
        policy(services=Services(machine.cost, random.Random(seed))),
        BlockPool(machine.blocks),
        machine.limits,
        guard=machine.guard,
        log=watch.decided,
        prefix_cache=machine.prefix_cache,
        cpu_clock=_no_cpu_time,
    )
    engine = Engine(
        scheduler=scheduler,
        backend=backend,
        clock=clock,
        cost=machine.cost,
        emit=watch.emitted,
        depth=machine.depth,
    )
    with _collecting_seldom():
        replay(engine, clock, _submissions(records))
    scheduler.check()
    return Simulation(
        records=records,
        counters=scheduler.counters,
        forced_admissions=scheduler.guard.forced_admissions,
        policy_faults=dict(scheduler.guard.saves),
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


def _noise(sigma: float, seed: int) -> Callable[[], float] | None:
    """Factors with a mean of one, from a generator of their own."""
    if not sigma:
        return None
    chance = random.Random(f"step times {seed}")
    return lambda: chance.lognormvariate(-sigma * sigma / 2, sigma)


def _submissions(records: Sequence[Record]) -> Iterator[Submission]:
    """Each request when its time has come, so that only those alive take memory."""
    for number, record in enumerate(records):
        arrival, targets = record.arrival, record.targets
        yield Submission(
            id=number,
            prompt=[number, *[0] * (arrival.prompt_tokens - 1)],  # the same object over and over
            max_tokens=arrival.output_tokens,
            controls=GREEDY,
            arrival=arrival.at,
            tenant=arrival.tenant,
            slo_class=arrival.slo_class,
            priority=arrival.priority,
            ttft_deadline=arrival.at + targets.ttft,
            tpot_target=targets.tpot,
            prompt_keys=_keys(number, arrival.prompt_tokens),
        )


def _keys(number: int, prompt_tokens: int) -> list[bytes]:
    """Names of a prompt's blocks that no other prompt has: traces say nothing of what is shared."""
    first = number << 32
    return [(first + i).to_bytes(KEY_BYTES, "big") for i in range(prompt_tokens // BLOCK)]


class _Wordless(SimulatedBackend):
    """Nobody reads the answers: token 0, over and over."""

    def _sampled(self, sampling: Collection[SampleRow], scored: Sequence[ScoredRow]) -> Sampled:
        return Sampled([0] * len(sampling), [None] * len(sampling))


class _Watch:
    """Notes in the records what the engine emits and decides."""

    def __init__(
        self, records: Sequence[Record], log: DecisionSink, tick: Callable[[], None]
    ) -> None:
        self._records = records
        self._log = log
        self._tick = tick

    def emitted(self, outputs: Sequence[Output], look: Look) -> None:
        """The engine's `Emit`."""
        records = self._records
        for output in outputs:
            record = records[output.request]
            if output.tokens:
                record.token_times.append(output.at)
            if output.timing is not None:
                record.admitted_at = output.timing.admitted
                record.cached_tokens = output.cached
            if output.finish is not None:
                if output.finish.reason is FinishReason.REJECTED:
                    assert output.finish.failure is not None
                    record.shed = output.finish.failure.kind.value
                self._tick()

    def decided(self, *entry: Any) -> None:
        """The scheduler's `DecisionSink`."""
        if self._log is not no_log:
            self._log(*entry)
        kind = entry[0]
        if kind == "admit":
            self._records[entry[1]].recomputed_tokens += entry[3]
        elif kind in ("preempt", "displace"):
            self._records[entry[1]].preemptions += 1
