"""What is kept of traffic: no more than simulations need, and no text."""

from typing import Any

import pytest

from app.shadow.history import History
from engine.controls import RowControls
from engine.inbox import Submission


class Diary:
    """A history whose time is told by hand."""

    def __init__(self, most: int = 100) -> None:
        self.now = 0.0
        self.history = History(lambda: self.now, most)

    def arrive(self, number: int, at: float, **more: Any) -> Submission:
        self.now = at
        each = Submission(
            id=number, prompt=[7, 7], max_tokens=8, controls=RowControls(), arrival=at, **more
        )
        self.history.arrived(each)
        return each

    def token(self, each: Submission, at: float, gap: float | None = None) -> None:
        self.now = at
        self.history.came(each, 1, gap, at)
        if gap is None:
            self.history.began(each, at - each.arrival, 16)

    def end(self, each: Submission, at: float, outcome: str = "served") -> None:
        self.now = at
        self.history.over(each, outcome, None)

    def cut(self, at: float):
        self.now = at
        return self.history.cut()


def test_a_window_has_who_came_and_what_became_of_it():
    diary = Diary()
    each = diary.arrive(1, 1.0, prompt_keys=[b"k" * 16])
    diary.token(each, 1.5)
    diary.token(each, 1.75, 0.25)
    diary.end(each, 1.8)
    stretch, score, missed = diary.cut(10.0)
    assert (stretch.start, stretch.opens, stretch.closes, missed) == (0.0, 0.0, 10.0, 0)
    (course,) = stretch.courses
    assert (course.had, course.got, course.length, course.left) == (0, 2, 2, None)
    assert course.request.keys == b"k" * 16
    assert score.requests == 1
    assert score.whole["ttft_s"] == 0.5
    assert score.whole["itl_s"] == 0.25
    assert score.whole["e2e_s"] == 0.75, "to its last token, however long its client reads"
    assert score.whole["output_tok_s"] == pytest.approx(0.2)


def test_simulations_of_a_window_begin_where_the_one_before_opened():
    diary = Diary()
    first, second = diary.arrive(1, 1.0), diary.arrive(2, 2.0)
    for at in (3.0, 8.0):
        diary.token(first, at, None if at == 3.0 else 5.0)
    diary.end(second, 9.0)
    diary.cut(10.0)
    diary.token(first, 12.0, 4.0)
    stretch, score, _ = diary.cut(20.0)
    assert (stretch.start, stretch.opens) == (0.0, 10.0)
    assert [course.request.whose.key for course in stretch.courses] == [1, 2]
    assert score.requests == 0, "nobody came in it"
    third, _, _ = diary.cut(30.0)
    (course,) = third.courses
    assert (course.had, course.got, course.length) == (2, 3, None)


def test_who_is_over_is_forgotten_when_no_simulation_needs_it():
    diary = Diary()
    for number in range(50):
        diary.end(diary.arrive(number, number / 10), number / 10)
    diary.cut(10.0)
    assert diary.history.kept == 50
    diary.cut(20.0)
    assert diary.history.kept == 0


def test_more_than_may_be_kept_are_counted_and_room_comes_back():
    diary = Diary(most=3)
    for number in range(5):
        diary.end(diary.arrive(number, number / 10), number / 10)
    assert diary.cut(10.0)[2] == 2
    assert diary.cut(20.0)[2] == 2, "simulations of it begin in the window that lacks them"
    diary.end(diary.arrive(9, 21.0), 21.0)
    assert diary.cut(30.0)[2] == 0


def test_whoever_could_not_be_kept_is_missed_for_as_long_as_it_is_there():
    diary = Diary(most=1)
    kept, stranger = diary.arrive(1, 1.0), diary.arrive(2, 2.0)
    diary.end(kept, 3.0)
    assert [diary.cut(at)[2] > 0 for at in (10.0, 20.0, 30.0)] == [True] * 3
    diary.end(stranger, 31.0)
    assert [diary.cut(at)[2] > 0 for at in (40.0, 50.0, 60.0)] == [True, True, False]


def test_who_waits_has_waited_until_the_end():
    diary = Diary()
    diary.arrive(1, 4.0)
    _, score, _ = diary.cut(10.0)
    assert score.whole["ttft_s"] == 6.0


def test_who_was_refused_counts_as_that_and_who_left_as_nothing():
    diary = Diary()
    diary.end(diary.arrive(1, 1.0), 2.0, "rejected")
    diary.end(diary.arrive(2, 1.0), 3.0, "abort")
    stretch, score, _ = diary.cut(10.0)
    assert score.whole["shed"] == 1
    assert score.whole["ttft_s"] is None
    refused, left = stretch.courses
    assert (refused.length, refused.left) == (None, None)
    assert (left.length, left.left) == (None, 3.0)


def test_nothing_of_a_prompt_is_kept_but_its_length():
    diary = Diary()
    each = diary.arrive(1, 1.0)
    stretch, _, _ = diary.cut(10.0)
    request = stretch.courses[0].request
    kept = [getattr(request, name) for name in request.__dataclass_fields__]
    assert request.prompt_tokens == 2
    assert each.prompt not in kept
