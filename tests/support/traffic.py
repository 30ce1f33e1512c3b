"""Random traffic for the bounds of policies: prefix hits, cancels, and pools too small for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st

from policies.base import Policy
from support.engines import NO_CPU_LIMIT, Harness

NO_GUARD = replace(NO_CPU_LIMIT, enabled=False)
"""A policy's bounds are its own: the guard would only make them look better."""

SHARED = [9_000_000 + i for i in range(48)]


@dataclass(frozen=True)
class Visit:
    """A request: it comes `gap` steps after the one before, and may leave early.

    shared: prompt tokens that others begin with, too. leaves_after: steps.
    """

    prompt: int = 20
    shared: int = 0
    max_tokens: int = 8
    gap: int = 0
    tenant: str = "a"
    priority: int = 0
    leaves_after: int | None = None


VISITS = st.lists(
    st.builds(
        Visit,
        prompt=st.integers(1, 70),
        shared=st.sampled_from([0, 0, 16, 33, 48]),
        max_tokens=st.integers(1, 30),
        gap=st.sampled_from([0, 0, 0, 1, 2, 5]),
        tenant=st.sampled_from("ab"),
        priority=st.integers(0, 3),
        leaves_after=st.one_of(st.none(), st.none(), st.none(), st.integers(0, 20)),
    ),
    min_size=1,
    max_size=16,
)
SETUPS = st.fixed_dictionaries(
    {
        "blocks": st.integers(7, 20),
        "budget": st.integers(4, 48),
        "rows": st.integers(1, 5),
        "depth": st.sampled_from([0, 1]),
    }
)


@dataclass(frozen=True)
class Admission:
    """A request was let in while others waited. again: it had been preempted."""

    request: int
    waiting: frozenset[int]
    again: bool


@dataclass(frozen=True)
class Run:
    """What became of visits. The k-th has request id k, from 1, and ticket k - 1.

    arrivals: engine time at which each came.
    """

    harness: Harness
    visits: list[Visit]
    arrivals: dict[int, float]

    def visit(self, request: int) -> Visit:
        return self.visits[request - 1]

    @property
    def admissions(self) -> list[Admission]:
        return admissions(self.harness)

    @property
    def displacements(self) -> list[tuple[int, int]]:
        return displacements(self.harness)


def admissions(harness: Harness) -> list[Admission]:
    """Every admission of a run, from its decision log."""
    made: list[Admission] = []
    waiting: set[int] = set()
    started: set[int] = set()
    for kind, *fields in harness.log.entries:
        if kind in ("arrive", "preempt", "displace"):
            waiting.add(fields[0])
        elif kind == "admit":
            waiting.discard(fields[0])
            made.append(Admission(fields[0], frozenset(waiting), fields[0] in started))
            started.add(fields[0])
        elif kind in ("cancel", "finish"):
            waiting.discard(fields[0])
    return made


def started(harness: Harness) -> list[int]:
    """Requests in the order of their first admission."""
    return [admission.request for admission in admissions(harness) if not admission.again]


def displacements(harness: Harness) -> list[tuple[int, int]]:
    """Who was pushed out, and by whom."""
    return [(entry[1], entry[2]) for entry in harness.log.entries if entry[0] == "displace"]


def play(policy: Callable[..., Policy], visits: list[Visit], **setup: Any) -> Run:
    """Serve the visits to their ends, without the guard."""
    harness = Harness(policy=policy, guard=NO_GUARD, **setup)
    arrivals: dict[int, float] = {}
    leaving: list[tuple[int, int]] = []
    steps = 0

    def step() -> None:
        nonlocal steps
        for when, request in leaving:
            if when == steps:
                harness.abort(request)
        harness.step()
        steps += 1

    for number, visit in enumerate(visits, start=1):
        for _ in range(visit.gap):
            step()
        own = [number * 1000 + i for i in range(visit.prompt)]
        prompt = (SHARED[: visit.shared] + own)[: visit.prompt]
        arrivals[number] = harness.clock.now()
        harness.submit(prompt, visit.max_tokens, tenant=visit.tenant, priority=visit.priority)
        if visit.leaves_after is not None:
            leaving.append((steps + visit.leaves_after, number))
    while harness.mail or harness.scheduler.live or harness.scheduler.in_flight:
        step()
        assert steps < 10_000, "a request never ended"
    assert harness.pool.free == harness.pool.total
    return Run(harness, visits, arrivals)
