"""Fair share: its bound over random traffic, its lifts, and what a swap leaves of it."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.engines import NO_CPU_LIMIT, Harness, services
from support.shares import WEIGHTS, Books, booked, compete, unit
from support.traffic import NO_GUARD, started

from engine.inbox import Reconfigure
from policies.base import SERVICE, Service
from policies.fair_share import FairShare
from policies.fcfs import FCFS

PRICES = [(1.0, 2.0), (8.0, 1.0), (1.0, 0.0)]
SEEDS = st.integers(0, 10**6)


@settings(max_examples=8)
@given(seed=SEEDS, prices=st.sampled_from(PRICES))
def test_two_tenants_that_wait_get_the_same_within_the_bound(seed, prices) -> None:
    shares = {"input_price": prices[0], "output_price": prices[1]}
    books, harness = compete(
        seed, prices, lambda books, step: None if step else booked(books, FairShare, **shares)
    )
    assert books.worst <= 2 * unit(harness, prices)


def test_the_traffic_of_that_test_is_shared_unevenly_by_fcfs_and_has_all_that_is_hard() -> None:
    ratios, preemptions, hits, cancels = [], 0, 0, 0
    for seed in range(4):
        books, harness = compete(
            seed, PRICES[0], lambda books, step: None if step else booked(books, FCFS)
        )
        ratios.append(books.worst / unit(harness, PRICES[0]))
        preemptions += harness.scheduler.counters.preemptions
        hits += harness.scheduler.counters.cached_tokens
        cancels += harness.scheduler.counters.cancelled
    assert max(ratios) > 4
    assert preemptions > 20
    assert hits > 500
    assert cancels > 5


@settings(max_examples=6)
@given(seed=SEEDS)
def test_the_bound_holds_over_the_time_in_charge_although_fcfs_takes_turns(seed) -> None:
    def turns(books: Books, step: int):
        if step % 20:
            return None
        fair = step % 40 == 0
        return booked(books, FairShare) if fair else booked(books, FCFS, opens=False)

    books, harness = compete(seed, PRICES[0], turns)
    assert books.worst <= 2 * unit(harness, PRICES[0])
    assert books.compared > 100


def service(harness: Harness, requests: list[int]) -> int:
    return sum(len(harness.tokens(request)) for request in requests)


def burst(policy, *, weight: float = 1.0) -> float:
    """One tenant is always busy, another comes after a long time with as much: its part then."""
    harness = Harness(policy=policy, guard=NO_GUARD, rows=4, blocks=64)
    busy = [harness.submit(10, max_tokens=10, tenant="busy") for _ in range(100)]
    for _ in range(90):
        harness.step()
    before = service(harness, busy)
    back = [harness.submit(10, max_tokens=10, tenant="back", weight=weight) for _ in range(60)]
    for _ in range(100):
        harness.step()
    own, others = service(harness, back), service(harness, busy) - before
    return own / (own + others)


class NoLift(FairShare):
    def observe(self, events):
        self._counters.join = partial(type(self._counters).join, self._counters, lift=False)
        return super().observe(events)


def test_who_comes_back_gets_its_share_and_not_what_it_missed() -> None:
    assert burst(FairShare) == pytest.approx(0.5, abs=0.05)
    assert burst(FairShare, weight=3.0) == pytest.approx(0.75, abs=0.05)
    assert burst(NoLift) > 0.9
    assert burst(FCFS) < 0.1


def test_cached_prompt_tokens_are_free() -> None:
    harness = Harness(policy=FairShare, budget=128)
    prompt = list(range(64))
    for tenant in "ab":
        harness.submit(prompt, max_tokens=1, tenant=tenant)
        harness.run()
    counters = harness.policy.export()["counters"]
    assert counters["a"] == 64 + 2
    assert counters["b"] == 66 + 16 + 2  # lifted to who waited last, then 48 of 64 are cached


def test_who_was_let_in_last_gives_way_first() -> None:
    harness = Harness(policy=FairShare, blocks=8, rows=4, prefix_cache=False)
    requests = [harness.submit(20, max_tokens=30, tenant=tenant) for tenant in "aab"]
    harness.run()
    assert started(harness) == [1, 3, 2]
    gave_way = [entry[1] for entry in harness.log.entries if entry[0] == "preempt"]
    assert gave_way[0] == 2
    assert all(len(harness.tokens(request)) == 30 for request in requests)


# ---------------------------------------------------------------- predicted lengths


def test_expected_output_is_charged_ahead_and_corrected_at_the_end() -> None:
    harness = Harness(policy=partial(FairShare, predict_output=True), prefix_cache=False)

    def serve(tokens: int) -> tuple[float, float]:
        before = harness.policy._counters["a"]
        harness.submit(4, max_tokens=tokens, tenant="a")
        harness.step()
        ahead = harness.policy._counters["a"] - before
        harness.run()
        return ahead, harness.policy._counters["a"] - before

    assert serve(10) == (4 + 2, 4 + 20)  # nothing is known yet: one token came
    assert serve(10) == (4 + 20, 4 + 20)
    assert serve(13) == (4 + 20, 4 + 26)  # 3 more than expected
    assert serve(5) == (4 + 2 * 5, 4 + 10)  # never more than it may generate


def test_what_was_expected_and_did_not_come_is_given_back() -> None:
    harness = Harness(policy=partial(FairShare, predict_output=True), prefix_cache=False)
    harness.submit(4, max_tokens=20, tenant="a")
    harness.run()
    before = harness.policy._counters["a"]
    left = harness.submit(4, max_tokens=30, tenant="a")
    for _ in range(3):
        harness.step()
    assert harness.policy._counters["a"] - before == 4 + 40
    assert harness.policy.export()["counters"]["a"] - before == 4 + 6
    harness.abort(left)
    harness.step()
    assert harness.policy._counters["a"] - before == 4 + 6


# ---------------------------------------------------------------- swaps


def swap(harness: Harness, policy: FairShare | FCFS) -> None:
    harness.mail.append(Reconfigure(policy))
    harness.step()


def test_other_parameters_go_on_with_the_counters() -> None:
    harness = Harness(policy=FairShare, rows=1)
    harness.submit(30, max_tokens=3, tenant="a")
    harness.run()
    swap(harness, FairShare(services=services(), output_price=5.0))
    assert harness.scheduler.guard.policy.export()["counters"] == {"a": 36.0}


def test_the_engine_knows_who_got_least_where_fcfs_was_in_charge_from_the_start() -> None:
    harness = Harness(rows=1)
    for _ in range(5):
        harness.submit(10, max_tokens=4, tenant="heavy")
    light = [harness.submit(10, max_tokens=2, tenant="light") for _ in range(2)]
    for _ in range(9):
        harness.step()
    swap(harness, FairShare(services=services()))
    harness.run()
    order = started(harness)
    assert order.index(light[0]) == 3
    assert order.index(light[1]) == 4


class Pool:
    total_blocks, block_size = 10, 16


def test_what_others_gave_is_made_up_for_within_the_bound_only() -> None:
    policy = FairShare(services=services())
    got = {"a": Service(10**6, 10**6, 1.0), "b": Service(9, 3, 1.0), "c": Service(0, 10**6, 0.5)}
    policy.restore({SERVICE: got}, [], Pool())
    counters = policy.export()["counters"]
    assert counters["c"] == 4 * 10**6
    assert counters["a"] == counters["b"] == counters["c"] - 2 * 160


def test_weights_and_classes_do_not_part_a_tenant() -> None:
    harness = Harness(policy=FairShare, rows=1, guard=NO_CPU_LIMIT)
    harness.submit(50, max_tokens=2, tenant="a", slo_class="chat")
    batch = harness.submit(50, max_tokens=2, tenant="a", slo_class="batch")
    other = harness.submit(50, max_tokens=2, tenant="b", slo_class="batch")
    harness.run()
    assert started(harness) == [1, other, batch]


@pytest.mark.parametrize(
    ("params", "complaint"),
    [
        ({"input_price": -1.0}, "input_price must be finite and not negative"),
        ({"output_price": 1e308}, "at most 1000000, got 1e.308"),
        ({"output_price": float("inf")}, "output_price must be finite"),
        ({"input_price": 0.0, "output_price": 0.0}, "must not both be 0"),
    ],
)
def test_prices_that_mean_nothing_are_refused(params, complaint) -> None:
    with pytest.raises(ValueError, match=complaint):
        FairShare(services=services(), **params)


@pytest.mark.slow
@settings(max_examples=60)
@given(seed=SEEDS, prices=st.sampled_from(PRICES))
def test_the_bound_holds_over_much_more_traffic(seed, prices) -> None:
    shares = {"input_price": prices[0], "output_price": prices[1]}
    books, harness = compete(
        seed, prices, lambda books, step: None if step else booked(books, FairShare, **shares)
    )
    assert books.worst <= 2 * unit(harness, prices)
    assert set(books.service) <= set(WEIGHTS)
