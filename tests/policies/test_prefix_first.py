"""Prefix first: exact order within a tenant, turns between tenants, ageing."""

from __future__ import annotations

import random
from functools import partial
from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.engines import Harness, services
from support.shares import booked, compete, unit
from support.traffic import NO_GUARD, started

from policies.fcfs import FCFS
from policies.prefix_first import PrefixFirst

PRICES = (1.0, 2.0)
QUANTUM = 60.0


@settings(max_examples=8)
@given(seed=st.integers(0, 10**6))
def test_two_tenants_that_wait_get_the_same_within_the_bound(seed) -> None:
    books, harness = compete(
        seed,
        PRICES,
        lambda books, step: None if step else booked(books, PrefixFirst, quantum=QUANTUM),
    )
    assert books.worst <= 2 * (unit(harness, PRICES) + QUANTUM)


class Checked(PrefixFirst):
    """Compares each head with a fresh look at everybody who waits of its tenant."""

    everybody: ClassVar[dict] = {}
    checked: ClassVar[int] = 0

    def pick(self, heads, step):
        flow = super().pick(heads, step)
        head = heads[flow]
        keys = [
            (self._ageing * r.arrival - r.cached, r.ticket)
            for r in self.everybody.values()
            if r.phase.value in ("waiting", "preempted") and r.tenant == head.tenant
        ]
        own = (self._ageing * head.arrival - head.cached, head.ticket)
        assert own == min(keys)
        Checked.checked += len(keys) > 1
        return flow

    def observe(self, events):
        for event in events:
            request = getattr(event, "request", None)
            if request is not None:
                self.everybody[request.id] = request
        return super().observe(events)


@settings(max_examples=5)
@given(seed=st.integers(0, 10**6), ageing=st.sampled_from([0.0, 500.0, 20_000.0]))
def test_of_a_tenant_the_longest_cached_prefix_is_next_whatever_happens(seed, ageing) -> None:
    Checked.everybody, Checked.checked = {}, 0
    compete(
        seed, PRICES, lambda books, step: None if step else booked(books, Checked, ageing=ageing)
    )
    assert Checked.checked > 20


def test_the_order_is_exact_with_thousands_waiting() -> None:
    chance = random.Random(0)
    harness = Harness(policy=partial(PrefixFirst, ageing=0.0), rows=1, blocks=64, budget=128)
    system = list(range(48))
    harness.submit(system, max_tokens=4)
    warm = []
    for number in range(3000):
        own = [10_000 + number, *(chance.randrange(10**6) for _ in range(20))]
        is_warm = number % 500 == 499
        request = harness.submit((system if is_warm else []) + own, max_tokens=1)
        if is_warm:
            warm.append(request)
    for _ in range(12):
        harness.step()
    assert started(harness)[: len(warm) + 1] == [1, *warm]


def test_more_prompt_tokens_are_found_than_by_fcfs() -> None:
    found = {}
    for policy in (FCFS, PrefixFirst):
        chance = random.Random(1)
        harness = Harness(policy=policy, rows=2, blocks=12, budget=64)
        for _ in range(60):
            topic = chance.randrange(6)
            prompt = [topic * 1000 + i for i in range(64)] + [chance.randrange(10**6)]
            harness.submit(prompt, max_tokens=2)
        harness.run()
        found[policy] = harness.scheduler.counters.cached_tokens
    assert found[PrefixFirst] > 1.5 * found[FCFS]


def test_a_turn_lasts_for_a_quantum_and_debt_is_waited_out() -> None:
    harness = Harness(policy=partial(PrefixFirst, quantum=40.0), rows=1, budget=128, guard=NO_GUARD)
    for _ in range(6):
        for tenant in "ab":
            harness.submit(16, max_tokens=2, tenant=tenant)
    harness.run()
    # 20 for each request: two make a quantum
    turns = ["ab"[(request - 1) % 2] for request in started(harness)]
    assert "".join(turns) == "aabbaabbaabb"


@pytest.mark.parametrize(("ageing", "place"), [(0.0, 9), (48 / 0.008, 5)])
def test_a_cold_prompt_is_passed_by_those_only_that_its_age_does_not_outweigh(
    ageing: float, place: int
) -> None:
    harness = Harness(
        policy=partial(PrefixFirst, ageing=ageing), rows=1, budget=128, guard=NO_GUARD
    )
    prefix = list(range(48))
    harness.submit([*prefix, 1], max_tokens=2)
    harness.step()
    cold = harness.submit(20, max_tokens=2)
    for number in range(8):
        harness.submit([*prefix, 100 + number], max_tokens=2)
        harness.step()
        harness.step()
    harness.run()
    assert started(harness).index(cold) == place


@pytest.mark.parametrize(
    ("params", "complaint"),
    [
        ({"quantum": 0.0}, "quantum must be positive and finite"),
        ({"ageing": -1.0}, "ageing must be finite and not negative"),
        ({"input_price": -1.0}, "input_price must be finite"),
    ],
)
def test_parameters_that_mean_nothing_are_refused(params, complaint) -> None:
    with pytest.raises(ValueError, match=complaint):
        PrefixFirst(services=services(), **params)
