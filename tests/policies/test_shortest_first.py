"""Shortest uncached prompt first: order, re-keying, and its ageing bound."""

import math
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.engines import Harness, services
from support.traffic import SETUPS, VISITS, Visit, play, started

from policies.shortest_first import ShortestFirst


@settings(max_examples=50)
@given(visits=VISITS, setup=SETUPS, tokens_per_ms=st.integers(1, 30))
def test_a_request_is_overtaken_only_within_the_time_its_own_length_is_worth(
    visits, setup, tokens_per_ms
) -> None:
    rate = 1000.0 * tokens_per_ms
    run = play(partial(ShortestFirst, tokens_per_s=rate), visits, **setup)
    for admission in run.admissions:
        for other in admission.waiting:
            latest = run.arrivals[other] + run.visit(other).prompt / rate
            assert run.arrivals[admission.request] <= latest + 1e-9


def test_shorter_prompts_go_first_and_equals_as_they_came() -> None:
    lengths = [30, 40, 3, 20, 3]
    visits = [Visit(prompt=length, max_tokens=2) for length in lengths]
    assert started(play(ShortestFirst, visits, rows=1).harness) == [3, 5, 4, 1, 2]


def test_a_long_prompt_that_waited_long_enough_goes_before_a_short_one() -> None:
    harness = Harness(policy=partial(ShortestFirst, tokens_per_s=5_000.0), rows=1)
    harness.submit(4, max_tokens=30)
    long = harness.submit(60, max_tokens=2)  # worth 12 ms
    for _ in range(6):
        harness.step()
    early = harness.submit(4, max_tokens=2)
    for _ in range(14):
        harness.step()
    late = harness.submit(4, max_tokens=2)
    harness.run()
    assert started(harness) == [1, early, long, late]


class Prompt:
    """What the policy reads of a waiting request."""

    def __init__(self, cached: int, preemptions: int = 0) -> None:
        self.id, self.ticket, self.arrival, self.prompt = 7, 3, 2.0, 500
        self.cached = cached
        self.preemptions = preemptions


def test_only_what_the_cache_lacks_counts() -> None:
    policy = ShortestFirst(services=services(), tokens_per_s=100.0)
    request = Prompt(cached=400)
    assert policy.key(request)[0] == 7.0
    assert policy.prefix_key(request, 400)[0] == policy.rank(request)[0] == 3.0
    assert "100 uncached tokens" in policy.explain(request, None)


def test_who_waits_moves_when_its_prefix_becomes_cached() -> None:
    harness = Harness(policy=ShortestFirst, rows=1, budget=128)
    prefix = list(range(64))
    harness.submit(prefix, max_tokens=3)
    harness.step()
    medium = harness.submit(20, max_tokens=2)
    long = harness.submit([*prefix, 7, 8, 9], max_tokens=2)
    harness.run()
    assert started(harness) == [1, long, medium]


def test_who_gave_way_is_placed_by_its_arrival_alone() -> None:
    policy = ShortestFirst(services=services())
    again = Prompt(cached=0, preemptions=1)
    assert policy.key(again) == policy.prefix_key(again, 400) == (2.0, 3)
    assert policy.flow(again) != policy.flow(Prompt(cached=0))


@pytest.mark.parametrize("rate", [0.0, -5.0, math.inf, math.nan])
def test_a_rate_that_means_nothing_is_refused(rate) -> None:
    with pytest.raises(ValueError, match="tokens_per_s must be positive and finite"):
        ShortestFirst(services=services(), tokens_per_s=rate)
