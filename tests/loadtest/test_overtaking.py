"""Overtaking: who came later and was let in earlier counts, and nobody else."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.simulation import NO_TARGETS, Record
from loadtest.overtaking import count_overtaking
from loadtest.traces import Arrival


def records(*admitted: float | None) -> list[Record]:
    """Requests that arrived one a second, and were admitted then."""
    return [Record(Arrival(n, 1, 1), NO_TARGETS, at) for n, at in enumerate(admitted)]


def overtaken(*admitted: float | None) -> list[int | None]:
    found = records(*admitted)
    count_overtaking(found)
    return [record.overtaken for record in found]


def test_only_later_requests_that_were_admitted_earlier_count() -> None:
    assert overtaken(9.0, 5.0, 7.0, 9.0) == [2, 0, 0, 0]
    assert overtaken(9.0, None, 7.0) == [1, None, 0]


@given(st.lists(st.none() | st.integers(0, 9).map(float), max_size=12))
def test_it_is_the_count_by_pairs(admitted: list[float | None]) -> None:
    assert overtaken(*admitted) == [
        None
        if own is None
        else sum(other is not None and other < own for other in admitted[place + 1 :])
        for place, own in enumerate(admitted)
    ]
