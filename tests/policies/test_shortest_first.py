"""Shortest uncached prompt first: order, re-keying, and its ageing bound."""

import math
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.engines import Harness, services
from support.traffic import SETUPS, VISITS, Visit, play, started

from policies.base import Arrived, PrefixChanged
from policies.shortest_first import ShortestFirst


@settings(max_examples=50, deadline=None, derandomize=True)
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


def test_only_what_the_cache_lacks_counts_and_a_change_of_it_asks_to_be_queued_anew() -> None:
    policy = ShortestFirst(services=services(), tokens_per_s=100.0)
    request = Prompt(cached=0)
    assert policy.key(request) == (7.0, 3)
    request.cached = 400
    assert list(policy.observe([Arrived(request), PrefixChanged(request)])) == [7]
    assert policy.key(request) == (3.0, 3)
    assert "100 uncached tokens" in policy.explain(request, None)


def test_who_gave_way_is_placed_by_its_arrival_alone() -> None:
    policy = ShortestFirst(services=services())
    assert policy.key(Prompt(cached=0, preemptions=1)) == (2.0, 3)


@pytest.mark.parametrize("rate", [0.0, -5.0, math.inf, math.nan])
def test_a_rate_that_means_nothing_is_refused(rate) -> None:
    with pytest.raises(ValueError, match="tokens_per_s must be positive and finite"):
        ShortestFirst(services=services(), tokens_per_s=rate)
