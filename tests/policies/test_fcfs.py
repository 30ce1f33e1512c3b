"""First come, first served: nobody is overtaken, and backfill is bounded."""

from collections import Counter
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.engines import Harness, services
from support.traffic import SETUPS, VISITS, Visit, play, started

from policies.fcfs import FCFS


@settings(max_examples=40)
@given(visits=VISITS, setup=SETUPS)
def test_nobody_is_overtaken_and_who_gave_way_keeps_its_place(visits, setup) -> None:
    for admission in play(FCFS, visits, **setup).admissions:
        assert admission.request < min(admission.waiting, default=len(visits) + 1)


@settings(max_examples=40)
@given(visits=VISITS, setup=SETUPS, passes=st.integers(1, 3))
def test_with_backfill_nobody_is_overtaken_by_more_than_it_says(visits, setup, passes) -> None:
    overtaken: Counter[int] = Counter()
    for admission in play(partial(FCFS, backfill=passes), visits, **setup).admissions:
        overtaken.update(w for w in admission.waiting if w < admission.request)
    assert max(overtaken.values(), default=0) <= passes


def test_the_small_pass_a_big_one_that_does_not_fit_and_then_no_more() -> None:
    """The bound holds over all steps of its wait, not for each of them."""
    harness = Harness(policy=partial(FCFS, backfill=2), blocks=10, rows=4)
    running = harness.submit(60, max_tokens=40)
    harness.step()
    big = harness.submit(120, max_tokens=2)
    small = [harness.submit(4, max_tokens=2) for _ in range(2)]
    for _ in range(6):
        harness.step()
    late = [harness.submit(4, max_tokens=2) for _ in range(3)]
    harness.run()
    assert started(harness) == [running, *small, big, *late]


def test_without_backfill_the_small_wait_behind_the_big_one() -> None:
    visits = [Visit(prompt=60, max_tokens=40), Visit(prompt=100), *[Visit(prompt=4)] * 3]
    assert started(play(FCFS, visits, blocks=8).harness) == [1, 2, 3, 4, 5]


def test_negative_backfill_is_refused() -> None:
    with pytest.raises(ValueError, match="backfill must not be negative, got -1"):
        FCFS(services=services(), backfill=-1)
