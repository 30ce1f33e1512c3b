"""Forecasts of when a request starts: rates of lines, and intervals from their own errors."""

from __future__ import annotations

import pytest
from support.engines import Harness

from engine.admissions import AdmissionBook
from engine.cost import LinearCost
from engine.forecast import PENDING, ForecastRecord, Pending, Rates, Workload

UNIT = Workload(LinearCost(prompt_token=1.0), output=0.0, decoding=1)
A, B = ("default", "a"), ("default", "b")


def book(*passages: tuple[float, tuple[str, str], int]) -> AdmissionBook:
    """Admissions at some time, from some line, of a prompt of some length."""
    harness, admissions = Harness(), AdmissionBook()
    for at, line, prompt in passages:
        request = harness.submit(prompt)
        harness.step()
        admissions.add(harness.scheduler.request(request), at, line, (), frozenset())
    return admissions


def test_a_line_moves_as_fast_as_it_did_since_the_oldest_came() -> None:
    steady = book(*((float(second), A, 10) for second in range(64)))
    rates = Rates(steady, UNIT, lines=1, now=64.0)
    assert rates.of(A, since=0.0) == pytest.approx(10, rel=0.03)
    assert rates.grain == pytest.approx(1.0)


def test_a_line_of_which_little_is_known_is_drawn_towards_its_share_of_the_house() -> None:
    steady = book(*((float(second), A, 10) for second in range(64)))
    rates = Rates(steady, UNIT, lines=2, now=64.0)
    assert rates.of(B, since=64.0) == pytest.approx(5, rel=0.03)
    assert rates.of(B, since=0.0) < 2, "nothing came of it for a minute"


def test_before_two_were_let_in_the_house_does_a_second_of_work_a_second() -> None:
    assert Rates(AdmissionBook(), UNIT, lines=1, now=9.0).of(A, since=0.0) == 1
    swapped = book((0.0, A, 10), (1.0, A, 10), (2.0, A, 10))
    swapped.reorder()
    assert Rates(swapped, UNIT, lines=4, now=9.0).of(A, since=0.0) == 0.25


def test_a_workload_is_seconds_by_the_cost_model() -> None:
    cost = LinearCost(base=0.02, prompt_token=0.001, decode=0.002, kv_read=1e-5)
    workload = Workload(cost, output=10, decoding=4)
    alone = 0.001 * 100 + 1e-5 * 100 + 10 * (0.002 + 1e-5 * 100 + 0.02 / 4)
    assert workload.seconds([100]) == pytest.approx(alone)
    assert workload.seconds([100] * 7) == pytest.approx(7 * alone)
    assert workload.seconds([]) == 0


def test_the_book_forgets_the_oldest_and_says_so() -> None:
    harness, admissions = Harness(), AdmissionBook()
    harness.submit(4)
    harness.step()
    request = harness.scheduler.request(1)
    for at in range(AdmissionBook.MOST + 10):
        admissions.add(request, float(at), A, (), frozenset())
    assert admissions.remembers(10)
    assert not admissions.remembers(9)
    assert [passage.number for passage in admissions.since(admissions.count - 3)] == [
        admissions.count - 1,
        admissions.count - 2,
        admissions.count - 3,
    ]


# ---------------------------------------------------------------- the interval


def told(record: ForecastRecord, errors: list[float]) -> None:
    """Forecasts of a second that came true after so many."""
    for number, seconds in enumerate(errors):
        record.tell(number, Pending(at=0.0, seconds=1.0, grain=0.0))
        record.started(number, seconds)


def test_before_anything_is_known_it_spans_from_a_fifth_to_five_times() -> None:
    assert ForecastRecord().spread(0.0) == (pytest.approx(0.2), pytest.approx(5.0))


def test_it_is_as_wide_as_forecasts_were_wrong() -> None:
    record = ForecastRecord()
    told(record, [1 + (number % 101) / 100 for number in range(1010)])
    low, high = record.spread(0.0)
    assert (low, high) == (pytest.approx(1.05, abs=0.03), pytest.approx(1.95, abs=0.03))


def test_who_is_overdue_counts_before_it_has_started() -> None:
    record = ForecastRecord()
    told(record, [1.0] * 300)
    assert record.spread(0.0) == (1.0, 1.0)
    for number in range(40):
        record.tell(1000 + number, Pending(at=0.0, seconds=1.0, grain=0.0))
    assert record.spread(0.5) == (1.0, 1.0)
    assert record.spread(3.0) == (1.0, 3.0)
    for number in range(40):
        record.forget(1000 + number)
    assert record.spread(3.0) == (1.0, 1.0)


def test_the_first_of_several_forecasts_counts_and_no_more_are_kept_than_may_be() -> None:
    record = ForecastRecord()
    for number in range(3 * PENDING):
        record.tell(number, Pending(0.0, 1.0, 0.0))
        record.tell(number, Pending(0.0, 99.0, 0.0))
    assert len(record._pending) == PENDING
    assert {forecast.seconds for forecast in record._pending.values()} == {1.0}
