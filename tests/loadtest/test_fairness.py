"""Jain's index over those who compete, and over nobody else."""

from __future__ import annotations

from array import array

import pytest

from engine.simulation import NO_TARGETS, Record
from loadtest.fairness import competing_shares, fairness, jain, largest_gap
from loadtest.traces import Arrival


def record(tenant: str, arrival: float, admitted: float | None, tokens: int = 1) -> Record:
    """A request of one prompt token whose tokens all came when it was admitted."""
    times = array("d", [] if admitted is None else [admitted] * tokens)
    return Record(Arrival(arrival, 1, tokens, tenant), NO_TARGETS, admitted, times)


def test_the_index_is_one_for_equals_and_a_share_for_a_monopoly() -> None:
    assert jain([3.0, 3.0, 3.0]) == pytest.approx(1)
    assert jain([5.0, 0.0, 0.0, 0.0]) == pytest.approx(1 / 4)
    assert jain([0.0, 0.0]) == 1


def test_tenants_that_wait_all_through_a_window_are_compared_by_their_service() -> None:
    waits = [record("a", 0, 100, 4), record("b", 0, 70, 4)]
    got = [record("a", 0, 10, tokens=2), record("b", 0, 20, tokens=12)]
    assert fairness(waits + got) == pytest.approx(jain([1 + 2 * 2, 1 + 2 * 12]))


def test_who_does_not_compete_does_not_count() -> None:
    busy = [record("a", 0, 100), record("a", 0, 5, tokens=500)]
    assert fairness([*busy, record("b", 0, 59)]) == 1.0  # served within the window
    assert fairness([*busy, record("b", 0, None)]) == 1.0  # shed
    assert fairness(busy) == 1.0
    assert fairness([]) == 1.0


def test_a_night_in_which_nobody_comes_takes_no_time() -> None:
    far = 1e12
    waits = [record(tenant, at, at + 120, 4) for at in (0.0, far) for tenant in ("a", "b")]
    assert fairness(waits) == 1.0


def test_waits_that_touch_are_one_backlog() -> None:
    joined = [record("b", 0, 30), record("b", 20, 90)]
    assert fairness([record("a", 0, 100), record("a", 0, 1, tokens=9), *joined]) < 1


def test_the_largest_gap_is_that_of_two_who_compete_in_one_window() -> None:
    waits = [record("a", 0, 130), record("b", 0, 130), record("c", 60, 130)]
    got = [record("a", 0, 70, tokens=4), record("b", 0, 10, tokens=2), record("c", 0, 70, tokens=9)]
    assert competing_shares(waits + got) == [[0, 5], [9, 0, 19]]
    assert largest_gap([[0, 5], [9, 0, 19]]) == 19
    assert largest_gap([]) == 0
