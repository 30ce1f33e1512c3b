"""The counters against the algorithm as the paper writes it, with loops over all tenants."""

from __future__ import annotations

import random

import pytest

from policies.counters import QUIET, TenantCounters, clamped


class Waiting:
    """What the counters read of a request."""

    def __init__(self, number: int, tenant: str, slo_class: str) -> None:
        self.id = self.ticket = number
        self.tenant = tenant
        self.slo_class = slo_class


class Plain:
    """Virtual token counters without heaps. Doubles as the heads that may be picked from."""

    def __init__(self) -> None:
        self.counters: dict[str, float] = {}
        self.waiting: dict[int, Waiting] = {}
        self.last: str | None = None
        self.closed = "none"

    def join(self, request: Waiting) -> None:
        tenants = {r.tenant for r in self.waiting.values()}
        own = self.counters.setdefault(request.tenant, 0.0)
        if request.tenant not in tenants:
            if tenants:
                own = max(own, min(self.counters[tenant] for tenant in tenants))
            elif self.last is not None:
                own = max(own, self.counters[self.last])
        self.counters[request.tenant] = own
        self.waiting[request.id] = request

    def leave(self, request: Waiting) -> None:
        self.last = self.waiting.pop(request.id).tenant

    def flows(self) -> dict[tuple[str, str], Waiting]:
        heads: dict[tuple[str, str], Waiting] = {}
        for request in self.waiting.values():
            if request.slo_class != self.closed:
                heads.setdefault((request.slo_class, request.tenant), request)
        return heads


@pytest.mark.parametrize("seed", range(30))
def test_they_choose_and_lift_as_the_plain_algorithm_does(seed: int) -> None:
    chance, plain, counters = random.Random(seed), Plain(), TenantCounters()
    for number in range(300):
        move = chance.choice(["join", "join", "leave", "charge", "charge", "refund", "pick"])
        tenant = chance.choice("abcde")
        if move == "join":
            request = Waiting(number, tenant, chance.choice(["chat", "batch"]))
            before = counters[tenant]
            plain.join(request)
            counters.join(request)
            assert counters[tenant] >= before, "a lift never lowers"
        elif move == "leave" and plain.waiting:
            request = plain.waiting[chance.choice(sorted(plain.waiting))]
            plain.leave(request)
            assert counters.leave(request)
            assert not counters.leave(request)
        elif move in ("charge", "refund") and tenant in plain.counters:
            amount = chance.randint(0, 9) * (-1 if move == "refund" else 1)
            plain.counters[tenant] += amount
            counters.charge(tenant, amount)
        elif move == "pick":
            plain.closed = chance.choice(["none", "chat", "batch"])
            flows = plain.flows()
            if flows:
                least = min(plain.counters[tenant] for _, tenant in flows)
                _, tenant = counters.least(flows)
                assert plain.counters[tenant] == least
        assert {name: counters[name] for name in plain.counters} == plain.counters


def test_tenants_that_nobody_sees_any_more_are_forgotten_and_it_changes_nothing() -> None:
    counters, plain = TenantCounters(), Plain()
    for number in range(5 * QUIET):
        request = Waiting(number, f"tenant {number}", "chat")
        for books in (counters, plain):
            books.join(request)
            books.leave(request)
        counters.charge(request.tenant, 3)
        plain.counters[request.tenant] += 3
        counters.tidy([])
        assert counters[request.tenant] == plain.counters[request.tenant]
    assert len(counters.copy()) <= 2 * QUIET
    back = Waiting(10**6, "tenant 0", "chat")
    counters.join(back)
    plain.join(back)
    assert counters["tenant 0"] == plain.counters["tenant 0"] > 3


def test_a_running_tenant_is_not_forgotten() -> None:
    counters = TenantCounters()
    counters.start({f"tenant {number}": 1.0 for number in range(QUIET + 1)}, [])
    counters.join(Waiting(1, "new", "chat"))
    counters.charge("new", 9)
    counters.tidy(["tenant 5"])
    assert set(counters.copy()) == {"new", "tenant 5"}


def test_clamping_keeps_the_order_and_bounds_the_spread() -> None:
    assert clamped({"a": 100.0, "b": 3.0, "c": 80.0}, 40.0) == {"a": 100.0, "b": 60.0, "c": 80.0}
    assert clamped({}, 40.0) == {}
