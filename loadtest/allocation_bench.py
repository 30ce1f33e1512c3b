"""What paging saves: the same requests through the same pool, blocks paged and blocks reserved.

The scheduler that serves, in virtual time. Requests ask for more than they get, as clients do: they
name a round maximum and their answers end when they end. Reserved blocks wait for tokens that
never come, so fewer requests run at once, and steps whose price is mostly the weights serve fewer.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from engine.allocation import ALLOCATIONS, Allocation
from engine.backends.simulated import SimulatedBackend, alphabet
from engine.batch import BLOCK
from engine.blocks import BlockPool
from engine.clock import VirtualClock
from engine.controls import RowControls, SampleRow
from engine.guard import GuardSettings
from engine.inbox import Submission
from engine.limits import Limits
from engine.loop import Engine
from engine.outputs import Look, Output, Stats
from engine.replay import replay
from engine.scheduler import Scheduler
from loadtest.profiles import find_profile
from policies.base import Services
from policies.fcfs import FCFS

REQUESTS: Final = 300
POOL_TOKENS: Final = 10_000
PROFILE: Final = "vtc_a10g"
"""What a step takes, and with POOL_TOKENS the machine of that profile's measurements."""

_LONGEST_PROMPT: Final = 2_000
_MAXIMA: Final = (256, 512, 1024)
_END: Final = 0


@dataclass(frozen=True, slots=True)
class Demand:
    """One request, in tokens: the answer that it will get, and the one that it asks for."""

    prompt: int
    answer: int
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Usage:
    """What became of the same requests under one allocation.

    Means are over time. running: requests at once. waste: tokens of KV memory that are held and
    empty, of one sequence (mean and most in any step) and of all; held: tokens of KV memory that
    sequences hold. output_tok_s: tokens a second of virtual time, until the last request has ended.
    """

    running: float
    output_tok_s: float
    seconds: float
    held_tokens: float
    waste_tokens: float
    waste_per_sequence: float
    most_waste_per_sequence: int
    preemptions: int
    recomputed_tokens: int

    @property
    def waste_fraction(self) -> float:
        """Of the memory that is held."""
        return self.waste_tokens / self.held_tokens


def demands(requests: int = REQUESTS, seed: int = 0) -> list[Demand]:
    """A made-up mix: log-normal lengths, medians 400 in and 120 out, with long tails."""
    chance = random.Random(seed)
    mix = []
    for _ in range(requests):
        most = chance.choice(_MAXIMA)
        prompt = min(_LONGEST_PROMPT, 1 + round(chance.lognormvariate(6.0, 0.9)))
        answer = min(most, 1 + round(chance.lognormvariate(4.8, 0.9)))
        mix.append(Demand(prompt, answer, most))
    return mix


def compare(mix: Sequence[Demand]) -> dict[str, Usage]:
    """The usage of every allocation by its name, with all requests waiting from the start."""
    return {name: measure(allocation, mix) for name, allocation in ALLOCATIONS.items()}


def report(usages: Mapping[str, Usage]) -> dict[str, dict[str, Any]]:
    """For JSON."""
    return {
        name: {**asdict(usage), "waste_fraction": usage.waste_fraction}
        for name, usage in usages.items()
    }


def measure(allocation: Allocation, mix: Sequence[Demand]) -> Usage:
    """Let the requests run, and look at every block table after every step."""
    cost, clock = find_profile(PROFILE).cost, VirtualClock()
    blocks = POOL_TOKENS // BLOCK
    answers = _Answers(mix)
    backend = SimulatedBackend(cost, blocks, clock, wait=clock.advance, token=answers.token)
    scheduler = Scheduler(
        FCFS(services=Services(cost, random.Random(0))),
        BlockPool(blocks),
        Limits(step_tokens=2048, rows=256, model_len=blocks * BLOCK),
        guard=GuardSettings(),
        prefix_cache=False,  # no two of the prompts begin alike
        allocation=allocation,
        cpu_clock=lambda: 0.0,
    )
    ledger = _Ledger(scheduler)
    engine = Engine(
        scheduler=scheduler, backend=backend, clock=clock, cost=cost, emit=ledger.emitted
    )
    replay(engine, clock, answers.submissions())
    scheduler.check()
    return ledger.usage(clock.now())


class _Answers:
    """Requests whose answers end before their maximum; a prompt's first token is its number."""

    def __init__(self, mix: Sequence[Demand]) -> None:
        self._mix = mix

    def submissions(self) -> list[Submission]:
        controls = RowControls(temperature=0.0, eos_ids=frozenset({_END}))
        return [
            Submission(n, range(n, n + each.prompt), each.max_tokens, controls, arrival=0.0)
            for n, each in enumerate(self._mix)
        ]

    def token(self, row: SampleRow) -> int:
        ends_with = row.prompt_length + self._mix[row.tokens[0]].answer
        return _END if row.position + 1 >= ends_with else alphabet(row)


@dataclass
class _Ledger:
    """Sums over steps, each weighted with the seconds that it took."""

    scheduler: Scheduler
    seconds: float = 0.0
    running: float = 0.0
    held: float = 0.0
    waste: float = 0.0
    sequences: float = 0.0
    most: int = 0
    _stats: Stats = field(default_factory=Stats)

    def emitted(self, outputs: Sequence[Output], look: Look) -> None:
        """The engine's `Emit`, after each step."""
        self._stats = stats = look()
        running = self.scheduler.roster.running.values()
        open_sequences = [sequence for request in running for sequence in request.open_sequences]
        wastes = [len(s.table) * BLOCK - s.computed for s in open_sequences]
        seconds = stats.step_seconds
        self.seconds += seconds
        self.running += seconds * len(running)
        self.sequences += seconds * len(open_sequences)
        self.held += seconds * BLOCK * sum(len(s.table) for s in open_sequences)
        self.waste += seconds * sum(wastes)
        self.most = max(self.most, *wastes, 0)

    def usage(self, now: float) -> Usage:
        counters = self._stats.counters
        return Usage(
            running=self.running / self.seconds,
            output_tok_s=counters.generated_tokens / now,
            seconds=now,
            held_tokens=self.held / self.seconds,
            waste_tokens=self.waste / self.seconds,
            waste_per_sequence=self.waste / self.sequences,
            most_waste_per_sequence=self.most,
            preemptions=counters.preemptions,
            recomputed_tokens=counters.recomputed_tokens,
        )
