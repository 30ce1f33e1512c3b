"""Why is my request waiting: what the engine says, and that saying it changes nothing."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from support.built_in import BUILT_IN
from support.engines import NO_CPU_LIMIT, Harness
from support.overtaking import Overtaking

from engine import explanation
from engine.cost import LinearCost
from engine.inbox import Explain
from engine.limits import ClassLimits
from engine.outputs import Blocker, Explanations, Position, RequestExplanation
from policies.base import Hold, Policy
from policies.fair_share import FairShare
from policies.fcfs import FCFS
from policies.prefix_first import PrefixFirst
from policies.priority import Priority
from policies.shortest_first import ShortestFirst


def explain(harness: Harness, request: int | None = None, limit: int = 100) -> Explanations:
    """What the engine says before its next step, which is not taken."""
    told: list[Explanations] = []
    harness.engine._read(Explain(told.append, request, limit), harness.clock.now())
    return told[0]


def why(harness: Harness, request: int) -> RequestExplanation:
    (explanation,) = explain(harness, request).requests
    return explanation


def test_who_runs_waits_for_nothing_and_who_is_unknown_is_not_explained() -> None:
    harness = Harness()
    running = harness.submit(4)
    harness.step()
    seen = why(harness, running)
    assert (seen.position, seen.blockers, seen.start, seen.words) == (None, (), None, "")
    assert seen.request.phase == "decode"
    assert explain(harness, 99).requests == ()


def test_a_request_is_told_its_place_and_who_decides() -> None:
    harness = Harness(rows=1)
    requests = [harness.submit(4, max_tokens=30) for _ in range(4)]
    harness.step()
    third = why(harness, requests[3])
    assert third.position == Position("all", 3, 3, True, 1)
    assert Blocker("order", 2) in third.blockers
    assert third.words.startswith("requests start in order of arrival")


def test_a_flow_of_several_parts_is_named_by_them() -> None:
    harness = Harness(rows=1, policy=FairShare)
    harness.submit(4, max_tokens=30)
    harness.step()
    waiting = harness.submit(4)
    harness.step()
    assert why(harness, waiting).position.flow == "default / default"


def test_place_follows_the_policys_order() -> None:
    harness = Harness(rows=1, policy=ShortestFirst)
    harness.submit(4, max_tokens=30)
    harness.step()
    long, short = harness.submit(60), harness.submit(20)
    harness.step()
    assert (why(harness, short).position.place, why(harness, long).position.place) == (1, 2)


def leaving(harness: Harness, flow) -> list[int]:
    """The requests of a flow in the order in which they leave it; all are put back."""
    roster, left = harness.scheduler.roster, []
    while roster.waiting.has_flow(flow):
        left.append(roster.waiting.head(flow))
        roster.waiting.remove(left[-1])
    for request in left:
        roster.enqueue(request)
    return [request.id for request in left]


@pytest.mark.parametrize("policy", [ShortestFirst, PrefixFirst, FairShare, Priority])
def test_places_are_those_in_which_requests_leave(policy) -> None:
    """Also where the order follows the prefix cache: groups of prompts begin alike."""
    chance = random.Random(3)
    harness = Harness(rows=3, blocks=40, policy=policy)
    for _ in range(60):
        if chance.random() < 0.8:
            prompt = [chance.randrange(4)] * 32 + [chance.randrange(3)] * chance.randint(0, 40)
            harness.submit(prompt, max_tokens=6, priority=chance.randrange(3))
        harness.step()
        waiting = harness.scheduler.roster.waiting
        for flow in list(waiting.flows()):
            order = leaving(harness, flow)
            seen = [why(harness, request).position for request in order]
            assert [position.place for position in seen] == list(range(1, len(order) + 1))
            assert {(position.of, position.exact) for position in seen} == {(len(order), True)}
    assert harness.scheduler.counters.cached_tokens > 0


# ---------------------------------------------------------------- what blocks


def blockers(harness: Harness, request: int) -> dict[str, tuple[float, float]]:
    return {b.by: (b.needs, b.left) for b in why(harness, request).blockers}


def test_rows_that_are_all_taken() -> None:
    harness = Harness(rows=3)
    harness.submit(4, max_tokens=30, n=2)
    harness.step()
    pair = harness.submit(4, n=2)
    harness.step()
    assert blockers(harness, pair) == {"rows": (2, 1)}


def test_blocks_that_are_all_taken() -> None:
    harness = Harness(blocks=8)
    harness.submit(70, max_tokens=30)
    harness.step()
    large = harness.submit(60)
    harness.step()
    assert blockers(harness, large) == {"blocks": (4, 3)}


def test_limits_of_the_class() -> None:
    limits = {
        "batch": ClassLimits(max_running=1),
        "large": ClassLimits(max_blocks_fraction=0.25),
    }
    harness = Harness(blocks=32, classes=limits)
    harness.submit(4, max_tokens=30, slo_class="batch")
    harness.submit(70, max_tokens=30, slo_class="large")
    harness.step()
    second = harness.submit(4, slo_class="batch")
    large = harness.submit(60, slo_class="large")
    harness.step()
    assert blockers(harness, second) == {"class": (1, 0)}
    assert blockers(harness, large) == {"class": (4, 3)}


class Holding(Policy):
    def pick(self, heads, step):
        return Hold(0.5)


def test_a_hold_and_how_long_it_lasts() -> None:
    harness = Harness(policy=Holding)
    held = harness.submit(4)
    harness.step()
    assert blockers(harness, held)["hold"] == (pytest.approx(0.499), 0)


class Picky(Policy):
    """Wants nobody while anybody runs."""

    def pick(self, heads, step):
        return None


def test_a_policy_that_picks_nobody() -> None:
    harness = Harness(policy=Picky)
    harness.submit(4, max_tokens=30)
    harness.step()
    ignored = harness.submit(4)
    harness.step()
    assert blockers(harness, ignored) == {"policy": (0, 0)}


# ---------------------------------------------------------------- who overtook it


def test_overtakers_are_named_with_the_reason() -> None:
    """One comes first by the policy's order, one because a class is full."""
    classes = {"batch": ClassLimits(max_running=1)}
    harness = Harness(rows=2, policy=Priority, classes=classes)
    harness.submit(4, max_tokens=40, slo_class="batch")
    harness.submit(4, max_tokens=4)
    harness.step()
    waiting = harness.submit(4, priority=1, slo_class="batch")
    urgent = harness.submit(4, max_tokens=4, priority=1)
    for _ in range(8):
        harness.step()
    seen = why(harness, waiting)
    assert [(o.id, o.why) for o in seen.overtakers] == [(urgent, "class")]
    assert (seen.overtaken, seen.complete) == (1, True)


class Backfilling(Policy):
    def backfill(self, step):
        return 2


def test_a_request_that_does_not_fit_is_passed_for_lack_of_room() -> None:
    harness = Harness(blocks=8, policy=Backfilling)
    harness.submit(70, max_tokens=30)
    harness.step()
    large, small = harness.submit(60), harness.submit(4)
    harness.step()
    assert [(o.id, o.why) for o in why(harness, large).overtakers] == [(small, "room")]


@pytest.mark.parametrize("seed", range(4))
def test_overtakers_equal_the_decision_log(seed: int) -> None:
    """Random traffic with preemption; everybody who waits is asked for again and again."""
    chance = random.Random(seed)
    policy = [FCFS, ShortestFirst, Priority, Backfilling][seed]
    harness = Harness(blocks=12, rows=4, policy=policy, depth=seed % 2)
    log, read, asked = Overtaking([]), 0, 0
    for _ in range(150):
        if chance.random() < 0.4:
            size, tokens = chance.randint(1, 80), chance.randint(1, 60)
            harness.submit(size, max_tokens=tokens, priority=chance.randint(0, 2))
        harness.step()
        for entry in harness.log.entries[read:]:
            log.read(*entry)
        read = len(harness.log.entries)
        for seen in chance.sample(explain(harness).requests, k=harness.scheduler.live // 4):
            if seen.position is not None:
                full = why(harness, seen.request.id)
                assert [o.id for o in full.overtakers] == log.overtakers(seen.request.id)
                if seen.request.id not in log.displaced:  # of which the log tells no number
                    assert full.lost == log.lost[seen.request.id]
                asked += 1
    assert asked > 100
    assert harness.scheduler.counters.preemptions > 0


# ---------------------------------------------------------------- the policy's words


class Speechless(Policy):
    def explain(self, request, step):
        raise RuntimeError("planted")


class Mumbling(Policy):
    def explain(self, request, step):
        return 7


class Verbose(Policy):
    def explain(self, request, step):
        return "because " * 10_000


@pytest.mark.parametrize("policy", [Speechless, Mumbling])
def test_a_policy_that_cannot_explain_goes_on_deciding(policy) -> None:
    harness = Harness(rows=1, policy=policy)
    harness.submit(4, max_tokens=30)
    waiting = harness.submit(4)
    harness.step()
    assert why(harness, waiting).words.startswith("requests start in order of arrival")
    assert harness.scheduler.guard.saves == {"explanation": 1}
    assert not harness.scheduler.guard.fallen_back


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_built_in_policy_can_say_why_anybody_waits(name: str) -> None:
    chance = random.Random(4)
    harness = Harness(rows=2, blocks=12, policy=BUILT_IN[name])
    said = set()
    for _ in range(80):
        if chance.random() < 0.4:
            tenant = chance.choice("ab")
            harness.submit(chance.randint(1, 60), chance.randint(1, 60), tenant=tenant)
        harness.step()
        requests = list(harness.scheduler.roster.requests)
        if requests:
            said.add(why(harness, chance.choice(requests)).words)
    assert len(said - {""}) >= 1, "who runs has nothing to be told"
    assert harness.scheduler.guard.saves.total() == 0


def test_a_policy_that_talks_too_much_is_cut_short() -> None:
    harness = Harness(rows=1, policy=Verbose)
    harness.submit(4, max_tokens=30)
    waiting = harness.submit(4)
    harness.step()
    assert len(why(harness, waiting).words) == 1000


# ---------------------------------------------------------------- asking costs nothing


def test_whoever_asks_changes_no_decision() -> None:
    def decisions(asks: bool) -> bytes:
        chance = random.Random(5)
        harness = Harness(blocks=12, rows=4, policy=ShortestFirst, guard=NO_CPU_LIMIT)
        for _ in range(60):
            if chance.random() < 0.4:
                harness.submit(chance.randint(1, 80), max_tokens=chance.randint(1, 40))
            if asks:
                explain(harness)
                for request in list(harness.scheduler.roster.requests):
                    explain(harness, request)
            harness.step()
        return harness.log.encode()

    assert decisions(True) == decisions(False)


def test_however_many_wait_only_so_many_are_looked_at() -> None:
    harness = Harness(rows=1)
    requests = [harness.submit(4, max_tokens=4) for _ in range(5000)]
    harness.step()
    last = why(harness, requests[-1]).position
    assert (last.exact, last.of) == (False, 4999)
    assert 2000 < last.place <= 4096
    brief = explain(harness, limit=200).requests
    assert sum(each.position is not None for each in brief[1:]) >= 50
    assert brief[-1].position is None


def test_the_estimate_counts_those_that_were_not_looked_at(monkeypatch) -> None:
    """A steady house: one request a time, each of the same length, so that the wait is known."""
    monkeypatch.setattr(explanation, "LOOKS", 100)
    harness = Harness(rows=1, policy=FCFS)
    harness.engine.cost = LinearCost(base=0.001)
    requests = [harness.submit(4, max_tokens=4) for _ in range(400)]
    for _ in range(300):
        harness.step()
    for place in (requests[-1], requests[120]):
        seen = why(harness, place)
        assert seen.position.exact == (place == requests[120])
        left = (place - 1 - harness.scheduler.counters.admitted + 1) * 0.004
        assert seen.start.seconds == pytest.approx(left, rel=0.1)
        assert seen.start.low < left < seen.start.high


def test_after_a_swap_an_estimate_begins_with_the_cost_model_alone() -> None:
    harness = Harness(rows=1)
    harness.engine.cost = LinearCost(decode=1.0)
    requests = [harness.submit(4, max_tokens=10) for _ in range(4)]
    for _ in range(15):
        harness.step()
    by_rate = why(harness, requests[-1]).start.seconds
    harness.scheduler.replace_policy(Priority(services=harness.policy.services), 0.0)
    generated = harness.scheduler.counters.generated_tokens / harness.scheduler.counters.admitted
    assert why(harness, requests[-1]).start.seconds == pytest.approx(2 * generated, rel=0.01)
    assert by_rate < 1


def test_the_guards_word_is_that_of_who_is_in_charge() -> None:
    class Raising(Policy):
        def key(self, request):
            raise RuntimeError("planted")

    harness = Harness(rows=1, policy=Raising, guard=replace(NO_CPU_LIMIT, fallback_steps=99))
    harness.submit(4, max_tokens=30)
    waiting = harness.submit(4)
    harness.step()
    seen = explain(harness, waiting)
    assert seen.fallen_back
    assert seen.requests[0].words.startswith("requests start in order of arrival")
