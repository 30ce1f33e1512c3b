"""Random workloads in small houses: who comes when, wants what, shares what, and leaves how."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from engine.allocation import PAGED, RESERVE, Allocation
from engine.beam_search import BeamSearch
from engine.controls import RowControls
from engine.limits import ClassLimits

GREEDY: Final = RowControls(temperature=0.0)

CLASSES: Final = {"batch": ClassLimits(max_running=2, max_blocks_fraction=0.8)}
"""One class has limits, the other has none."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request: it comes `gap` steps after the one before.

    shared: prompt tokens that others begin with, too. leaves_after: steps until its client hangs
    up. ends_after: steps until a stop string is found in its last sequence. stops_at: it ends with
    this token of its prompt. searches: for n of n + 1 beams. allowance: until its first token is
    due, in units of whoever plays it; inf for no deadline.
    """

    prompt: int
    shared: int
    max_tokens: int
    n: int
    gap: int
    tenant: str
    priority: int
    slo_class: str
    leaves_after: int | None
    ends_after: int | None
    stops_at: int | None
    searches: bool
    allowance: float

    @property
    def beams(self) -> BeamSearch | None:
        return BeamSearch(self.n + 1) if self.searches else None

    def tokens(self, request: int) -> list[int]:
        """Its prompt: tokens that tell requests apart, behind those that several share."""
        shared = min(self.shared, self.prompt)
        own = [request * 1000 + i for i in range(shared, self.prompt)]
        return [9_000_000 + i for i in range(shared)] + own

    def controls(self, request: int) -> RowControls:
        """What ends it before `max_tokens`, where its answer is its prompt over and over."""
        if self.stops_at is None or self.stops_at >= self.prompt:
            return GREEDY
        return replace(GREEDY, stop_ids=frozenset({self.tokens(request)[self.stops_at - 1]}))

    @property
    def ends_by_itself(self) -> bool:
        """Whether what it is answered depends on nothing but itself."""
        return self.leaves_after is None and self.ends_after is None


CHOICES: Final[Sequence[Sequence[Any]]] = (
    range(1, 71),  # prompt
    (0, 0, 0, 16, 33, 48),  # shared
    range(1, 41),  # max_tokens
    (1, 1, 1, 2, 3),  # n
    (0, 0, 0, 1, 2, 5),  # gap
    ("a", "b"),  # tenant
    (0, 0, 1, 2),  # priority
    ("default", "default", "batch"),  # slo_class
    (None,) * 120 + tuple(range(40)),  # leaves_after
    (None,) * 120 + tuple(range(1, 41)),  # ends_after
    (None,) * 60 + tuple(range(1, 21)),  # stops_at
    (False,) * 5 + (True,),  # searches
    (math.inf, math.inf, 0.015, 0.06),  # allowance
)
KINDS: Final = math.prod(map(len, CHOICES))
"""How many arrivals differ."""


def arrival_of(number: int) -> Arrival:
    """The number's digits choose the fields; 0 is the simplest of KINDS arrivals."""
    fields = []
    for choices in CHOICES:
        number, digit = divmod(number, len(choices))
        fields.append(choices[digit])
    return Arrival(*fields)


@dataclass(frozen=True, slots=True)
class Setup:
    """A small house: blocks of KV, tokens and rows of a step, host blocks, steps in flight."""

    blocks: int
    budget: int
    rows: int
    depth: int
    host_blocks: int = 0
    allocation: Allocation = PAGED

    def __str__(self) -> str:
        kind = "paged" if self.allocation is PAGED else "reserved"
        return (
            f"{self.blocks} {kind} blocks, {self.budget} tokens and {self.rows} rows a step, "
            f"{self.host_blocks} host blocks, depth {self.depth}"
        )


@dataclass(frozen=True, slots=True)
class Workload:
    """Who comes to which house. swap_every: steps after which the policy changes place with FCFS,
    or None."""

    setup: Setup
    arrivals: Sequence[Arrival]
    swap_every: int | None = None


def workload(seed: int, number: int) -> Workload:
    """The `number`-th workload of a seed.

    Every fourth has few blocks, for requests that differ by nothing but their age.
    """
    chance = random.Random(f"workload {seed} {number}")
    setup = Setup(
        blocks=chance.randint(7, 24),
        budget=chance.randint(3, 40),
        rows=chance.randint(3, 8),
        depth=number % 2,
        host_blocks=chance.choice((0, 0, 5, 40)),
        allocation=chance.choice((PAGED, PAGED, PAGED, PAGED, RESERVE)),
    )
    arrivals = [arrival_of(chance.randrange(KINDS)) for _ in range(chance.randint(4, 16))]
    if number % 4 == 3:
        arrivals = [replace(_PLAIN, prompt=arrivals[0].prompt) for _ in arrivals]
        setup = replace(setup, blocks=min(setup.blocks, 10), allocation=PAGED)
    return Workload(setup, arrivals, chance.choice((None, None, 5, 12)))


_PLAIN: Final = replace(arrival_of(0), max_tokens=40, slo_class="default")
