"""Priority classes: order, linear ageing, displacement by a strictly better class only."""

import math
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.engines import Harness, services
from support.traffic import SETUPS, VISITS, admissions, displacements, play, started

from policies.priority import Priority

# ---------------------------------------------------------------- bounds


@settings(max_examples=40)
@given(visits=VISITS, setup=SETUPS)
def test_strict_classes_are_served_in_order_and_each_of_them_as_it_came(visits, setup) -> None:
    run = play(Priority, visits, **setup)

    def place(request: int) -> tuple[int, int]:
        return (run.visit(request).priority, request)

    for admission in run.admissions:
        assert all(place(admission.request) < place(other) for other in admission.waiting)
    for victim, newcomer in run.displacements:
        assert run.visit(newcomer).priority < run.visit(victim).priority


@settings(max_examples=50)
@given(visits=VISITS, setup=SETUPS, ageing_ms=st.integers(1, 20))
def test_with_ageing_a_better_class_overtakes_only_within_so_much_for_each_class(
    visits, setup, ageing_ms
) -> None:
    run = play(partial(Priority, ageing_s=ageing_ms / 1000), visits, **setup)

    def may_overtake(first: int, second: int) -> bool:
        classes = run.visit(second).priority - run.visit(first).priority
        latest = run.arrivals[second] + classes * ageing_ms / 1000
        return run.arrivals[first] <= latest + 1e-9

    for admission in run.admissions:
        assert all(may_overtake(admission.request, other) for other in admission.waiting)
    for victim, newcomer in run.displacements:
        assert run.visit(newcomer).priority < run.visit(victim).priority
        assert may_overtake(newcomer, victim)


# ---------------------------------------------------------------- examples


def test_without_displacement_the_urgent_one_is_next_but_pushes_nobody_out() -> None:
    harness = Harness(policy=partial(Priority, displace=False), rows=1)
    low = [harness.submit(4, max_tokens=9, priority=5) for _ in range(3)]
    harness.step()
    urgent = harness.submit(4, max_tokens=2, priority=-1)
    harness.run()
    assert started(harness) == [low[0], urgent, low[1], low[2]]
    assert displacements(harness) == []


def test_equal_classes_never_displace_each_other() -> None:
    harness = Harness(policy=Priority, rows=1)
    for _ in range(6):
        harness.submit(4, max_tokens=5, priority=2)
        harness.step()
    harness.run()
    assert harness.scheduler.counters.preemptions == 0


def test_when_blocks_run_out_the_worst_class_gives_way_however_old_it_is() -> None:
    harness = Harness(policy=Priority, blocks=6, rows=3)
    first = harness.submit(20, max_tokens=40, priority=0)
    low = harness.submit(20, max_tokens=40, priority=3)
    middle = harness.submit(20, max_tokens=40, priority=1)
    harness.run()
    gave_way = [entry[1] for entry in harness.log.entries if entry[0] == "preempt"]
    assert gave_way[0] == low
    assert first not in gave_way
    assert harness.outputs[middle, 0][-1].at < harness.outputs[low, 0][-1].at


def test_who_was_let_in_by_its_age_is_not_pushed_out_by_who_came_too_late_to_overtake_it() -> None:
    harness = Harness(policy=partial(Priority, ageing_s=0.005), rows=1)
    harness.submit(4, max_tokens=30, priority=0)
    old = harness.submit(4, max_tokens=10, priority=2)
    for _ in range(30):
        harness.step()
    late = [harness.submit(4, max_tokens=4, priority=0) for _ in range(3)]
    harness.run()
    assert started(harness) == [1, old, *late]
    assert displacements(harness) == []


@pytest.mark.parametrize("depth", [0, 1])
def test_an_urgent_request_takes_the_blocks_it_lacks_from_the_youngest_of_the_worst(depth) -> None:
    harness = Harness(policy=Priority, blocks=16, rows=8, budget=128, depth=depth)
    running = [harness.submit(50, max_tokens=10, priority=p) for p in (3, 1, 3, 3)]
    for _ in range(3):
        harness.step()
    urgent = harness.submit(90, max_tokens=2, priority=0)
    for _ in range(2 + depth):
        harness.step()
    assert harness.tokens(urgent)
    assert displacements(harness) == [(running[3], urgent), (running[2], urgent)]
    harness.run()
    for request in running:
        assert harness.tokens(request) == [request * 1000 + i for i in range(10)]


def test_a_displaced_request_is_the_first_of_its_class_again() -> None:
    harness = Harness(policy=Priority, rows=1)
    low = [harness.submit(4, max_tokens=8, priority=5) for _ in range(3)]
    for _ in range(3):
        harness.step()
    urgent = harness.submit(4, max_tokens=2, priority=0)
    harness.run()
    assert displacements(harness) == [(low[0], urgent)]
    assert [a.request for a in admissions(harness)] == [low[0], urgent, *low]
    assert harness.tokens(low[0]) == [low[0] * 1000 + i % 4 for i in range(8)]


@pytest.mark.parametrize("ageing_s", [-1.0, math.inf, math.nan])
def test_an_ageing_that_means_nothing_is_refused(ageing_s) -> None:
    with pytest.raises(ValueError, match="ageing_s"):
        Priority(services=services(), ageing_s=ageing_s)
