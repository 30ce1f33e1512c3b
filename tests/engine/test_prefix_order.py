"""The order of a flow follows the prefix cache: it equals a fresh match of everybody."""

from __future__ import annotations

import random

import pytest
from support.engines import Harness, services
from support.odd_policies import MostCached

from engine.inbox import Reconfigure
from engine.prefix_order import PrefixChanges, PrefixOrder
from policies.fcfs import FCFS

BLOCK = 16


class Waiting:
    """Stands for a request: block keys, as every prefix of a word, and a ticket."""

    def __init__(self, ticket: int, word: str) -> None:
        self.ticket = ticket
        self.keys = [word[:end].encode() for end in range(1, len(word) + 1)]


class Bench:
    """An order beside the plain truth about what is known."""

    def __init__(self) -> None:
        self.known: dict[bytes, int] = {}
        self.changes = PrefixChanges(self.known.get)
        self.placed = 0
        self.order = self.flow()
        self.waiting: dict[int, Waiting] = {}

    def flow(self) -> PrefixOrder:
        return PrefixOrder(self.changes, lambda request: request.keys, self.place, BLOCK)

    def place(self, request: Waiting, cached: int) -> tuple[int, int]:
        self.placed += 1
        return (len(request.keys) * BLOCK - 3 * cached, request.ticket)

    def push(self, ticket: int, word: str) -> None:
        request = self.waiting[ticket] = Waiting(ticket, word)
        self.order.push(request, (len(request.keys) * BLOCK, ticket))

    def remove(self, ticket: int) -> None:
        self.order.remove(self.waiting.pop(ticket))

    def publish(self, word: str) -> None:
        if word.encode() not in self.known:
            self.known[word.encode()] = 1
            self.changes.note(word.encode(), True)

    def forget(self, word: str) -> None:
        if self.known.pop(word.encode(), None):
            self.changes.note(word.encode(), False)

    def cached(self, request: Waiting) -> int:
        for count, key in enumerate(request.keys):
            if key not in self.known:
                return count
        return len(request.keys)

    def check(self) -> None:
        if self.waiting:
            keys = {self.place(r, self.cached(r) * BLOCK): r for r in self.waiting.values()}
            assert self.order.first() == min(keys.items())
        else:
            with pytest.raises(LookupError):
                self.order.first()
        assert len(self.order) == len(self.waiting)


MOVES = ["push", "push", "remove", "publish", "publish", "publish all", "forget", "look", "ask"]


def play(bench: Bench, chance: random.Random) -> None:
    """Random moves; prefixes become known and are forgotten in any order, middles included."""
    letters, length = "abc"[: chance.randint(1, 3)], chance.choice([3, 5, 8])
    for ticket in range(chance.randint(1, 150)):
        word = "".join(chance.choices(letters, k=chance.randint(1, length)))
        move = chance.choice(MOVES)
        if move == "push":
            bench.push(ticket, word[chance.randint(0, 1) :])
        elif move == "remove" and bench.waiting:
            bench.remove(chance.choice(sorted(bench.waiting)))
        elif move == "publish":
            bench.publish(word)
        elif move == "publish all":
            for end in range(1, len(word) + 1):
                bench.publish(word[:end])
        elif move == "forget":
            bench.forget(word)
        elif move == "look":
            bench.check()
        elif move == "ask":
            for request in bench.waiting.values():
                assert bench.order.cached(request) == bench.cached(request)
    bench.check()


def test_the_first_is_the_first_by_a_fresh_match_under_any_moves() -> None:
    for seed in range(800):
        play(Bench(), random.Random(seed))


def test_publishing_a_prefix_moves_all_who_wait_behind_it_as_one() -> None:
    bench, chance = Bench(), random.Random(0)
    prefix = "x" * 50
    for ticket in range(2000):
        bench.push(ticket, prefix + f"{chance.getrandbits(64):064b}")
    bench.check()
    for end in range(1, 51):
        bench.publish(prefix[:end])
        placed = bench.placed
        key, request = bench.order.first()
        assert bench.placed - placed == 1
        assert request.ticket == 0
        assert key == (114 * BLOCK - 3 * end * BLOCK, 0)


def test_a_flow_reads_all_it_missed_although_the_changes_are_not_kept() -> None:
    bench = Bench()
    for ticket in range(3):
        bench.push(ticket, "abc"[: ticket + 1])
    bench.changes.KEPT = 8
    for number in range(20):
        bench.publish(f"z{number}")
    bench.publish("a")
    for number in range(20):
        bench.forget(f"z{number}")
    bench.check()
    assert bench.changes.since(0) is None


def test_flows_that_nobody_looks_at_cost_nothing() -> None:
    bench = Bench()
    others = [bench.flow() for _ in range(1000)]
    for ticket, order in enumerate(others):
        order.push(Waiting(ticket, "abc"), (48, ticket))
    bench.push(1000, "abc")
    placed = bench.placed
    bench.publish("a")
    bench.check()
    assert bench.placed - placed == 2  # the one of the order, and the one of the check


# ---------------------------------------------------------------- in the engine


def hold_against_a_fresh_match(harness: Harness) -> int:
    """Every waiting request is where the cache puts it; how many have something cached."""
    roster = harness.scheduler.roster
    flows: dict[str, list[tuple[int, int]]] = {}
    for request in roster.requests.values():
        if roster.waiting.holds(request):
            lane, flow = roster.waiting._places[request]
            found = len(harness.scheduler.memory.found(request.open_sequences[0]))
            assert lane.flows[flow].cached(request) == found
            assert request.view.cached == 16 * found
            flows.setdefault(flow, []).append((-found, request.ticket))
    for flow, entries in flows.items():
        assert roster.waiting.heads[flow].ticket == min(entries)[1]
    return sum(found < 0 for entries in flows.values() for found, _ in entries)


@pytest.mark.parametrize("depth", [0, 1])
def test_who_waits_is_where_the_cache_puts_it_after_every_step(depth: int) -> None:
    cached = preemptions = 0
    for seed in range(12):
        chance = random.Random(seed)
        harness = Harness(
            policy=MostCached, depth=depth, blocks=14, rows=4, budget=chance.choice([16, 40])
        )
        for _ in range(120):
            if chance.random() < 0.3:
                topic, length = chance.randrange(3), chance.choice([0, 16, 32, 48])
                prompt = [topic * 1000 + i for i in range(length)]
                prompt += [chance.randrange(3) for _ in range(chance.randint(1, 30))]
                harness.submit(
                    prompt,
                    max_tokens=chance.randint(1, 40),
                    n=chance.choice([1, 1, 1, 2]),
                    tenant=chance.choice("ab"),
                )
            if chance.random() < 0.1:
                harness.abort(chance.randint(1, 40))
            if chance.random() < 0.1:
                harness.finish(chance.randint(1, 40), tokens=chance.randint(1, 9))
            harness.step()
            cached += hold_against_a_fresh_match(harness)
        harness.run()
        preemptions += harness.scheduler.counters.preemptions
        assert harness.scheduler.guard.saves.total() == 0
    assert cached > 100
    assert preemptions > 10


def test_an_order_by_prefix_begins_and_ends_with_the_policy_that_wants_it() -> None:
    harness = Harness(rows=1, budget=128)
    prefix = list(range(64))
    first = harness.submit(prefix, max_tokens=8)
    cold = harness.submit(4, max_tokens=2)
    warm = [harness.submit([*prefix, 7, number], max_tokens=2) for number in range(2)]
    harness.step()
    assert harness.pool.on_change is None
    harness.mail.append(Reconfigure(MostCached(services=services())))
    harness.step()
    assert hold_against_a_fresh_match(harness) == 2
    while not harness.outputs[warm[0], 0]:
        harness.step()
    harness.mail.append(Reconfigure(FCFS(services=services())))
    harness.run()
    assert harness.pool.on_change is None
    starts = sorted([first, cold, *warm], key=lambda r: harness.outputs[r, 0][0].at)
    assert starts == [first, warm[0], cold, warm[1]]


class BadPrefixKey(MostCached):
    def prefix_key(self, request, cached):
        raise RuntimeError("planted")


def test_a_policy_that_breaks_in_prefix_key_costs_order_only() -> None:
    harness = Harness(policy=BadPrefixKey, rows=2)
    requests = [harness.submit(20, max_tokens=3) for _ in range(6)]
    harness.run()
    assert harness.scheduler.guard.fallen_back
    assert all(len(harness.tokens(request)) == 3 for request in requests)
