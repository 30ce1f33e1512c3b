"""What the engine's own work costs, without a model: scheduling, packing, hand-over.

Every probe is called once a round, the probes of a section in turn, so that a busy moment of the
machine meets all of them; a probe's figure is the median of its rounds. Seconds are CPU seconds of
the thread, which never waits here: what others do on the machine at the time hardly counts.
"""

from __future__ import annotations

import random
import statistics
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from engine.backends.base import Backend
from engine.backends.simulated import SimulatedBackend
from engine.batch import Batch
from engine.blocks import BlockPool, blocks_for
from engine.clock import MonotonicClock
from engine.controls import RowControls, Sampled, SampleRow
from engine.cost import FittedCost, LinearCost
from engine.decisions import no_log
from engine.inbox import Submission
from engine.limits import Limits
from engine.loop import Engine
from engine.outputs import Look, Output, Stats
from engine.outside import OUTSIDE
from engine.recorder import Recorder
from engine.scheduler import Scheduler
from policies.base import Services
from policies.fcfs import FCFS

ROWS = 64
"""Rows of every step that is measured."""

PROMPT = 128
"""Prompt tokens of the requests that decode while a step is measured."""

GREEDY = RowControls(temperature=0.0)

Probe = Callable[[], float]
"""Measures once; the median of several calls is the figure."""


@dataclass(frozen=True, slots=True)
class Repeats:
    """How often to measure: `rounds` times in turn, `steps` steps a time."""

    rounds: int
    steps: int


def measure_host(
    repeats: Repeats, waiting: Sequence[int], tick: Callable[[], None] = lambda: None
) -> dict[str, Any]:
    """The figures of the host path at ROWS rows; `tick` is called after each probe.

    scheduler_step_ms: `schedule` and `land` alone. host_step_ms: a whole step of the loop around a
    backend that takes no time, outputs handed over. rows_per_s: scheduled rows through the whole
    loop, with the simulated backend at no cost. churn_rows_per_s: the same while short requests
    come and go. waiting_ms: `schedule` alone with so many waiting in one flow, by their number.
    """
    steady = interleaved(steady_probes(repeats), repeats.rounds, tick)
    queues = interleaved(waiting_probes(repeats, waiting), repeats.rounds, tick)
    return {
        "scheduler_step_ms": 1e3 * steady["scheduler"],
        "host_step_ms": 1e3 * steady["host"],
        "rows_per_s": steady["rows"],
        "churn_rows_per_s": steady["churn"],
        "waiting_ms": {number: 1e3 * seconds for number, seconds in queues.items()},
    }


def probes_of(waiting: Sequence[int]) -> int:
    """How many probes `measure_host` calls in a round."""
    return 4 + len(waiting)


def interleaved(
    probes: Mapping[str, Probe], rounds: int, tick: Callable[[], None]
) -> dict[str, float]:
    """Call every probe once a round, in turn; the medians by name."""
    samples: dict[str, list[float]] = {name: [] for name in probes}
    for _ in range(rounds):
        for name, probe in probes.items():
            samples[name].append(probe())
            tick()
    return {name: statistics.median(values) for name, values in samples.items()}


# -------------------------------------------------------------------- probes


def steady_probes(repeats: Repeats) -> dict[str, Probe]:
    """Probes with nobody waiting: `scheduler`, `host` (seconds), `rows`, `churn` (a second)."""
    alone, whole = decoding_engine(repeats), decoding_engine(repeats)
    simulated = decoding_engine(repeats, partial(PackedBackend, LinearCost()))
    return {
        "scheduler": lambda: statistics.median(_plan_and_land(alone, repeats.steps)),
        "host": lambda: statistics.median(whole_steps(whole, repeats.steps)),
        "rows": lambda: ROWS / statistics.median(whole_steps(simulated, repeats.steps)),
        "churn": lambda: rows_per_second(2 * ROWS, prompt=32, generated=64),
    }


def waiting_probes(repeats: Repeats, waiting: Iterable[int]) -> dict[str, Probe]:
    """Probes of `schedule` (seconds a call) behind full rows, by how many wait."""

    def probe(number: int) -> Probe:
        engine = decoding_engine(repeats)
        submit(engine, number, prompt=PROMPT, generated=1)
        return lambda: statistics.median(_plans(engine, repeats.steps))

    return {str(number): probe(number) for number in waiting}


def rows_per_second(requests: int, prompt: int, generated: int) -> float:
    """Computed rows over seconds, from the first submission until every request has ended."""
    blocks = ROWS * blocks_for(prompt + generated)
    engine = make_engine(PackedBackend(LinearCost(), blocks), prompt + generated)
    started = time.thread_time()
    submit(engine, requests, prompt, generated)
    while engine.scheduler.live:
        engine.step(())
    return engine.scheduler.counters.computed_rows / (time.thread_time() - started)


def _plan_and_land(engine: Engine, steps: int) -> list[float]:
    """Seconds of `schedule` and `land` in each of `steps` steps."""
    return [sum(bare_step(engine)) for _ in range(steps)]


def _plans(engine: Engine, steps: int) -> list[float]:
    """Seconds of `schedule` in each of `steps` steps."""
    return [bare_step(engine)[0] for _ in range(steps)]


def whole_steps(engine: Engine, steps: int) -> list[float]:
    """Seconds of each of `steps` steps of the loop."""
    seconds = []
    for _ in range(steps):
        started = time.thread_time()
        engine.step(())
        seconds.append(time.thread_time() - started)
    return seconds


def bare_step(engine: Engine) -> tuple[float, float]:
    """One step without packing, computing and hand-over: seconds of `schedule` and of `land`."""
    scheduler, now = engine.scheduler, engine.clock.now()
    began = time.thread_time()
    plan = scheduler.schedule(now)
    planned = time.thread_time()
    flight = scheduler.launch(plan)
    sampled = Sampled([0] * len(flight.sampling), [None] * len(flight.sampling))
    resumed = time.thread_time()
    scheduler.land(flight, sampled, now)
    applied = time.thread_time()
    scheduler.step_done(0.0, 0.0)
    scheduler.take_outputs()
    return planned - began, applied - resumed


# -------------------------------------------------------------------- engines


def decoding_engine(
    repeats: Repeats,
    backend: Callable[[int], Backend] | None = None,
    recorder: Recorder | None = None,
) -> Engine:
    """An engine whose ROWS rows all decode, for as long as the repeats take."""
    generated = 2 + repeats.rounds * repeats.steps
    blocks = ROWS * blocks_for(PROMPT + generated)
    engine = make_engine((backend or InstantBackend)(blocks), PROMPT + generated, recorder)
    submit(engine, ROWS, PROMPT, generated)
    engine.step(())
    return engine


def make_engine(backend: Backend, model_len: int, recorder: Recorder | None = None) -> Engine:
    """A first-come-first-served engine on the real clock; its outputs go into an `Outbox`."""
    cost = FittedCost()
    policy = FCFS(services=Services(cost, random.Random(0)))
    limits = Limits(step_tokens=ROWS * PROMPT, rows=ROWS, model_len=model_len)
    scheduler = Scheduler(
        policy,
        BlockPool(backend.total_blocks),
        limits,
        log=no_log if recorder is None else recorder.decided,
        outside=recorder or OUTSIDE,
    )
    return Engine(
        scheduler=scheduler,
        backend=backend,
        clock=MonotonicClock(),
        cost=cost,
        emit=Outbox().emit,
        recorder=recorder,
    )


def submit(engine: Engine, requests: int, prompt: int, generated: int) -> None:
    """Let so many requests of this size arrive."""
    first = engine.scheduler.counters.arrived
    tokens = list(range(prompt))
    for number in range(first, first + requests):
        now = engine.clock.now()
        engine.scheduler.submit(Submission(number, tokens, generated, GREEDY, now), now)


class Outbox:
    """Takes a step's outputs as the server's bridge does; its reader takes all that waits."""

    DEPTH = 4

    def __init__(self) -> None:
        self._waiting: deque[tuple[Sequence[Output], Stats]] = deque(maxlen=self.DEPTH)

    def emit(self, outputs: Sequence[Output], look: Look) -> None:
        self._waiting.append((outputs, look()))


class PackedBackend(SimulatedBackend):
    """A simulated backend for which batches are packed as for a real one."""

    reads_arrays = True


class InstantBackend:
    """A backend that computes nothing: token 0 for every row."""

    reads_arrays = True

    def __init__(self, total_blocks: int) -> None:
        self._total_blocks = total_blocks
        self._rows = 0

    @property
    def total_blocks(self) -> int:
        return self._total_blocks

    @property
    def host_blocks(self) -> int:
        return 0

    @property
    def move_seconds(self) -> float:
        return 0.0

    def submit(self, batch: Batch) -> int:
        return batch.step

    def sample(self, ticket: int, rows: Collection[SampleRow]) -> None:
        self._rows = len(rows)

    def collect(self, ticket: int) -> Sampled:
        return Sampled([0] * self._rows, [None] * self._rows)

    def close(self) -> None:
        """Nothing is held."""
