"""Seeds: blocks of the trace, whole, longer than what one request can do to another."""

from __future__ import annotations

from array import array
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.comparisons import short_requests

from engine.simulation import NO_TARGETS, Record
from engine.simulation.arrival import Prefix
from loadtest.ab.resampling import FEWEST_BLOCKS, blocks_for, longest_busy_period, resample
from loadtest.traces import Arrival


def numbered(count: int, gap: float = 1.0) -> list[Arrival]:
    """Requests that are known by the lengths of their prompts."""
    return [Arrival(gap * n, n + 1, 1) for n in range(count)]


def ran(begin: float, *tokens: float) -> Record:
    return Record(
        Arrival(begin, 1, max(1, len(tokens))), NO_TARGETS, token_times=array("d", tokens)
    )


def test_the_longest_busy_period_joins_requests_that_overlap() -> None:
    records = [ran(0, 1, 2), ran(1, 3), ran(3.5, 4), ran(10, 11), ran(10.5), ran(11, 16)]
    assert longest_busy_period(records) == 6
    assert longest_busy_period(records[:3]) == 3
    assert longest_busy_period([ran(5)]) == 0


def test_a_block_holds_more_requests_than_a_busy_period_can() -> None:
    arrivals = numbered(100)
    assert blocks_for(arrivals, 4.0).requests == 6
    assert not blocks_for(arrivals, 4.0).cut
    assert blocks_for(arrivals, 4.0).busy_s == 4.0


def test_blocks_are_cut_where_a_seed_would_have_too_few_of_them() -> None:
    blocks = blocks_for(numbered(100), 50.0)
    assert blocks.cut
    assert blocks.requests == 100 // FEWEST_BLOCKS
    assert blocks_for(numbered(3), 50.0).requests == 1


@given(st.integers(1, 60), st.integers(1, 30), st.integers(0, 1000))
def test_a_seed_has_as_many_requests_in_blocks_that_follow_each_other_in_the_trace(
    count: int, block: int, seed: int
) -> None:
    arrivals = short_requests(count)
    drawn = resample(numbered(count), block, seed)
    assert len(drawn) == count
    places = [each.prompt_tokens - 1 for each in drawn]
    for here, (a, b) in enumerate(pairwise(places)):
        if (here + 1) % block:
            assert b == (a + 1) % count
    times = [each.at for each in resample(arrivals, block, seed)]
    assert times[0] == 0
    assert times == sorted(times)


def test_gaps_stay_with_the_requests_that_they_come_before() -> None:
    arrivals = [Arrival(at, n + 1, 1) for n, at in enumerate([0.0, 1.0, 3.0, 7.0, 15.0])]
    gaps = {1: 15 / 4, 2: 1.0, 3: 2.0, 4: 4.0, 5: 8.0}
    for seed in range(20):
        drawn = resample(arrivals, 2, seed)
        for a, b in pairwise(drawn):
            assert b.at - a.at == pytest.approx(gaps[b.prompt_tokens])


def test_the_same_seed_is_the_same_trace_and_another_is_not() -> None:
    arrivals = short_requests()
    assert resample(arrivals, 7, 3) == resample(arrivals, 7, 3)
    assert resample(arrivals, 7, 3) != resample(arrivals, 7, 4)


def test_tenants_and_classes_stay_with_their_requests() -> None:
    arrivals = short_requests()
    known = {(a.prompt_tokens, a.output_tokens, a.tenant, a.slo_class) for a in arrivals}
    for each in resample(arrivals, 7, 0):
        assert (each.prompt_tokens, each.output_tokens, each.tenant, each.slo_class) in known


def named(n: int, *names: int) -> Arrival:
    return Arrival(float(n), 16 * len(names), 1, prefix=Prefix(names))


def test_a_conversation_drawn_twice_is_two_and_a_system_prompt_is_one() -> None:
    system = 1
    arrivals = [named(n, system, 100 + n // 2) for n in range(20)]  # conversations of two requests
    drawn = resample(arrivals, 2, 5)
    names = [each.prefix.names for each in drawn if each.prefix]
    assert {first for first, _ in names} == {system}
    blocks = [{second for _, second in names[i : i + 2]} for i in range(0, 20, 2)]
    for one, other in pairwise(blocks):
        assert not one & other
    assert len(set.union(*blocks)) == sum(map(len, blocks))
    assert {1, 2} == {len(block) for block in blocks}  # conversations whole, or cut in the middle


def test_prompts_without_names_stay_without() -> None:
    assert all(each.prefix is None for each in resample(numbered(10), 3, 0))
