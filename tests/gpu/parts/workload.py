"""A seeded workload through the whole engine, at depth 0 and 1: rate, and how idle the device is.

    device    │ step 1 │ gap │ step 2 │ gap │        marks before and behind what a step enqueues

A gap sees what passes between two steps, not what a step itself waits for. So a step of the
engine is held against the same step enqueued again and again, when the device never waits, too.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from engine.backends import CudaSettings
from engine.backends.base import Backend
from engine.backends.cuda.assembly import assemble
from engine.backends.cuda.model import random_weights
from engine.batch import BLOCK, Batch
from engine.blocks import BlockPool
from engine.clock import MonotonicClock
from engine.controls import RowControls, Sampled, SampleRow
from engine.cost import FittedCost, LinearCost
from engine.inbox import Submission
from engine.limits import Limits
from engine.loop import Engine
from engine.outputs import Look, Output
from engine.scheduler import Scheduler
from policies.base import Services
from policies.fcfs import FCFS
from tests.engine.backends.batches import greedy_rows
from tests.gpu.bed import Bed, Mark
from tests.gpu.findings import Finding
from tests.gpu.rooms import decodes, tables

IDLE = 0.05
"""The share of a decode step in which the device may have nothing to do, at depth 1."""

GREEDY = RowControls(temperature=0.0, ignore_eos=True)

Texts = dict[int, list[int]]


@dataclass
class Marked:
    """A backend with marks before and behind each step of nothing but decodes, None for others."""

    backend: Backend
    bed: Bed
    steps: list[tuple[Mark, Mark] | None] = field(default_factory=list)
    _begun: dict[int, Mark | None] = field(default_factory=dict)

    reads_arrays = True

    def __getattr__(self, name: str) -> object:
        return getattr(self.backend, name)

    def submit(self, batch: Batch) -> int:
        plain = batch.tokens == len(batch.rows) == len(batch.sample_rows)
        begun = self.bed.mark() if plain else None
        ticket = self.backend.submit(batch)
        self._begun[ticket] = begun
        return ticket

    def sample(self, ticket: int, rows: Collection[SampleRow]) -> None:
        self.backend.sample(ticket, rows)
        begun = self._begun.pop(ticket)
        self.steps.append(None if begun is None else (begun, self.bed.mark()))

    def collect(self, ticket: int) -> Sampled:
        return self.backend.collect(ticket)


def run(bed: Bed) -> Iterator[Finding]:
    sizes, config = bed.sizes, bed.sizes.large
    weights = random_weights(config, 0, bed.device.torch_device, bed.dtype)
    longest = sizes.context + sizes.most_output + BLOCK
    blocks = sizes.rows * -(-longest // BLOCK)
    token_bytes = 2 * config.layers * config.kv_heads * config.head_dim * bed.dtype.itemsize
    backend = assemble(
        bed.device,
        weights,
        config,
        bed.kernels(config),
        CudaSettings(
            max_step_tokens=sizes.step_tokens,
            max_rows=sizes.rows,
            kv_dtype=bed.kv_dtype,
            kv_memory_bytes=blocks * BLOCK * token_bytes,
        ),
    )
    _serve(bed, Marked(backend, bed), 1, sizes.requests // 4)  # what is compiled at first use
    texts = {}
    for depth in (0, 1):
        marked = Marked(backend, bed)
        took, texts[depth] = _serve(bed, marked, depth, sizes.requests)
        tokens = sum(map(len, texts[depth].values()))
        yield Finding("engine", f"depth {depth}: rate", tokens / took, "tok/s")
        yield from _idleness(bed, backend, marked.steps, depth)
    alike = sum(texts[0][i] == texts[1][i] for i in texts[0])
    what = "texts that are the same at both depths"
    yield Finding("engine", what, float(alike), f"of {sizes.requests}")


def _serve(bed: Bed, backend: Marked, depth: int, requests: int) -> tuple[float, Texts]:
    """Seconds that the workload takes, and what was said."""
    sizes, texts = bed.sizes, Texts()

    def take(outputs: Sequence[Output], look: Look) -> None:
        for output in outputs:
            texts.setdefault(output.request, []).extend(output.tokens)

    services = Services(cost=LinearCost(base=0.01), rng=random.Random(0))
    limits = Limits(sizes.step_tokens, sizes.rows, sizes.context + sizes.most_output + 1, {})
    engine = Engine(
        scheduler=Scheduler(FCFS(services=services), BlockPool(backend.total_blocks), limits),
        backend=backend,
        clock=MonotonicClock(),
        cost=FittedCost(),
        emit=take,
        depth=depth,
    )
    mail = list(_submissions(bed, requests))
    started = time.perf_counter()
    while engine.step(mail) or engine.scheduler.live:
        mail = []
    bed.device.synchronize()
    return time.perf_counter() - started, texts


def _submissions(bed: Bed, requests: int) -> Iterator[Submission]:
    chance, sizes = random.Random(5), bed.sizes
    for i in range(requests):
        length = chance.randint(sizes.context // 8, sizes.context)
        output = chance.randint(sizes.most_output // 2, sizes.most_output)
        prompt = [chance.randrange(sizes.large.vocab) for _ in range(length)]
        yield Submission(i, prompt, output, GREEDY, 0.0)


def _idleness(
    bed: Bed, backend: Backend, steps: Sequence[tuple[Mark, Mark] | None], depth: int
) -> Iterator[Finding]:
    """The device's idle share of decode steps."""
    gaps, periods = [], []
    for one, other in pairwise(steps):
        if one is not None and other is not None:
            gaps.append(max(0.0, one[1].until(other[0])))
            periods.append(one[0].until(other[0]))
    if not periods:
        yield Finding("engine", f"depth {depth}", "no two decode steps in a row", fault=True)
        return
    promised = IDLE if depth == 1 and not bed.rehearsed else None
    share = sum(gaps) / sum(periods)
    yield Finding("engine", f"depth {depth}: decode steps", float(len(periods)))
    yield Finding("engine", f"depth {depth}: step to step", 1e3 * statistics.median(periods), "ms")
    yield Finding("engine", f"depth {depth}: idle between steps", share, at_most=promised)
    if depth == 1:
        busy = _never_waiting(bed, backend)
        yield Finding("engine", "a full step, the device never waiting", 1e3 * busy, "ms")


def _never_waiting(bed: Bed, backend: Backend) -> float:
    """Seconds of a step of all rows, enqueued without collecting."""
    sizes = bed.sizes
    batch = decodes(tables(sizes.rows, sizes.context), sizes.context - 1, [1] * sizes.rows)
    tickets = []

    def step() -> None:
        ticket = backend.submit(batch)
        backend.sample(ticket, greedy_rows(sizes.rows, GREEDY))
        tickets.append(ticket)

    took = bed.seconds(step, sizes.repeats)
    for ticket in tickets:
        backend.collect(ticket)
    return took
