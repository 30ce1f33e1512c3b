"""What tenants got while both of a pair had requests waiting: the bound of policies that share."""

from __future__ import annotations

import functools
import itertools
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from engine.batch import BLOCK
from engine.inbox import Reconfigure
from policies.base import (
    Admitted,
    Arrived,
    Cancelled,
    Event,
    Finished,
    Policy,
    Preempted,
    Shed,
    Tokens,
)
from support.engines import Harness, services
from support.traffic import NO_GUARD


class Books:
    """Service of each tenant, per weight, and its spread over each time that a pair waits.

    worst: the largest difference of what two tenants got over any time in which both had somebody
    waiting. Service is counted while `open` only, times without are cut out.
    """

    def __init__(self, weights: dict[str, float], prices: tuple[float, float]) -> None:
        self.weights = weights
        self.prices = prices
        self.open = True
        self.service: Counter[str] = Counter()
        self.waiting: dict[str, set[int]] = defaultdict(set)
        self.worst = 0.0
        self.compared = 0
        self._spans: dict[tuple[str, str], tuple[float, float]] = {}

    def read(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, Arrived | Preempted):
                self.waiting[event.request.tenant].add(event.request.id)
            elif isinstance(event, Admitted):
                self.waiting[event.request.tenant].discard(event.request.id)
                self._serve(event.request.tenant, self.prices[0] * event.first_computed)
            elif isinstance(event, Tokens):
                self._serve(event.request.tenant, self.prices[1] * event.count)
            elif isinstance(event, Finished | Cancelled | Shed):
                self.waiting[event.request.tenant].discard(event.request.id)
            self._compare()

    def _serve(self, tenant: str, amount: float) -> None:
        if self.open:
            self.service[tenant] += amount / self.weights[tenant]

    def _compare(self) -> None:
        for pair in itertools.combinations(sorted(self.weights), 2):
            if not all(self.waiting[tenant] for tenant in pair):
                self._spans.pop(pair, None)
                continue
            difference = self.service[pair[0]] - self.service[pair[1]]
            low, high = self._spans.get(pair, (difference, difference))
            self._spans[pair] = low, high = min(low, difference), max(high, difference)
            self.worst = max(self.worst, high - low)
            self.compared += 1


@functools.cache
def _booked(kind: type[Policy], opens: bool) -> type[Policy]:
    """One class for each kind, since the engine keeps what a policy exports by its class."""

    class Booked(kind):  # type: ignore[valid-type,misc]
        books: Books

        def observe(self, events):
            self.books.open = opens
            self.books.read(events)
            return super().observe(events)

    return Booked


def booked(books: Books, kind: type[Policy], *, opens: bool = True, **params: Any) -> Policy:
    """A policy whose events are booked: as service, or (opens=False) only as who waits."""
    policy = _booked(kind, opens)(services=services(), **params)
    policy.books = books  # type: ignore[attr-defined]
    return policy


WEIGHTS = {"a": 1.0, "b": 1.0, "c": 2.0}


def unit(harness: Harness, prices: tuple[float, float]) -> float:
    """U: what one admission can put a tenant ahead by, at most.

    At depth 1 every row may have generated one more token than the policy knows.
    """
    late = harness.engine.depth * harness.scheduler.limits.rows
    return max(prices[0] * LONGEST, prices[1] * (harness.pool.total * BLOCK + late))


LONGEST = 70


def crowd(chance: random.Random, harness: Harness) -> None:
    """A request of somebody; most come from a. Several share a prefix, a few leave early."""
    tenant = chance.choice("aaaabc")
    shared = chance.choice([0, 0, 16, 48])
    prompt = [ord(tenant) * 1000 + i for i in range(shared)]
    prompt += [chance.randrange(10**9) for _ in range(chance.randint(1, LONGEST - shared))]
    number = harness.submit(
        prompt, max_tokens=chance.randint(1, 40), tenant=tenant, weight=WEIGHTS[tenant]
    )
    if chance.random() < 0.1:
        harness.abort(chance.randint(1, number))


def compete(
    seed: int, prices: tuple[float, float], policies: Callable[[Books, int], Policy | None]
) -> tuple[Books, Harness]:
    """Random traffic over a pool too small for it. policies: who is in charge from a step on."""
    chance = random.Random(seed)
    books = Books(WEIGHTS, prices)
    first = policies(books, 0)
    assert first is not None
    harness = Harness(
        policy=lambda services: first,
        guard=NO_GUARD,
        depth=seed % 2,
        blocks=chance.randint(8, 14),
        budget=chance.choice([8, 24, 64]),
        rows=chance.randint(2, 8),
    )
    busy = chance.choice([0.15, 0.3, 0.6])
    for step in range(1, 250):
        if chance.random() < busy:
            crowd(chance, harness)
        policy = policies(books, step)
        if policy is not None:
            harness.mail.append(Reconfigure(policy))
        harness.step()
    harness.run()
    assert harness.scheduler.guard.saves.total() == 0
    return books, harness
