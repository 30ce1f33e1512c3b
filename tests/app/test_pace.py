"""The estimate of a wait follows how fast others got their first token."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.pace import Pace


def test_while_nothing_is_known_nothing_is_said_to_take_long() -> None:
    pace = Pace()
    assert pace.seconds(1, 100.0) == 0
    for _ in range(5):
        pace.enter(1, 100.0)
    assert pace.seconds(1, 100.0) == 0


def test_before_the_first_start_the_estimate_grows_with_the_time_that_has_passed() -> None:
    pace = Pace()
    for _ in range(5):
        pace.enter(1, 0.0)
    assert pace.seconds(1, 2.0) == 6 * 2  # as if the first started now: two seconds for each


def steady(seconds: float, starts: int, work: float = 1.0) -> tuple[Pace, float]:
    """A queue that is never empty and lets one in every so many seconds; and the time it is."""
    pace, now = Pace(), 50.0
    pace.enter(work, now)
    for _ in range(starts):
        pace.enter(work, now)
        now += seconds
        pace.start(work, now)
    return pace, now


@pytest.mark.parametrize("seconds", [0.001, 0.5, 30.0])
def test_after_thirty_starts_the_wait_is_work_ahead_times_what_a_unit_of_it_took(seconds) -> None:
    pace, now = steady(seconds, 200)
    for _ in range(9):
        pace.enter(1, now)
    assert pace.seconds(1, now) == pytest.approx(11 * seconds, rel=0.05)
    assert pace.seconds(4, now) == pytest.approx(14 * seconds, rel=0.05)


def test_time_without_anybody_waiting_counts_for_nothing() -> None:
    pace, now = steady(0.5, 200)
    pace.start(1, now + 0.5)
    assert pace.waiting == 0
    before = pace.seconds(1, now + 0.5)
    assert pace.seconds(1, now + 9999) == before
    pace.enter(1, now + 9999)
    assert pace.seconds(1, now + 9999) == pytest.approx(2 * before)


def test_a_stall_makes_the_estimate_longer_while_it_lasts() -> None:
    pace, now = steady(0.5, 200)
    waits = [pace.seconds(1, now + stall) for stall in (0, 1, 10, 100)]
    assert waits == sorted(waits)
    assert waits[-1] > 6 * waits[0]


def test_it_follows_in_some_thirty_starts_when_the_house_gets_faster() -> None:
    pace, now = steady(1.0, 100)
    for _ in range(100):
        pace.enter(1, now)
        now += 0.01
        pace.start(1, now)
    assert pace.seconds(1, now) < 0.2


def test_who_leaves_without_a_token_makes_room_and_teaches_nothing() -> None:
    pace, now = steady(0.5, 200)
    before = pace.seconds(1, now)
    for _ in range(20):
        pace.enter(1, now)
        pace.leave(1, now)
    assert pace.seconds(1, now) == before


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["enter", "start", "leave"]),
        st.floats(0, 100),
        st.floats(0.5, 1e6),
    ),
    max_size=100,
)


@given(EVENTS)
def test_whatever_happens_an_estimate_is_a_number_that_more_work_makes_longer(events) -> None:
    pace, now, inside = Pace(), 0.0, []
    for what, seconds, work in events:
        now += seconds
        if what == "enter":
            pace.enter(work, now)
            inside.append(work)
        elif inside:
            getattr(pace, what)(inside.pop(), now)
        few, many = pace.seconds(1, now), pace.seconds(1000, now)
        assert 0 <= few < math.inf
        assert few <= many * (1 + 1e-9)
        assert pace.waiting == len(inside)
