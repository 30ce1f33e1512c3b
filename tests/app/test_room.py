"""Bounds on what is open and waits: of the house, of each class, of each tenant."""

import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.bounds import Bounds
from app.room import ANY_TERMS, ANYBODY, Overloaded, QuotaExceeded, Room
from app.tenancy import Tenant, Terms
from engine.clock import VirtualClock
from engine.controls import RowControls
from engine.inbox import Submission
from engine.outputs import Counters

URGENT, BATCH = Terms("urgent"), Terms("batch")


class Ids:
    """Submissions with ids of their own."""

    def __init__(self) -> None:
        self.last = 0

    def __call__(self, tokens: int = 1, n: int = 1, max_tokens: int = 1) -> Submission:
        self.last += 1
        return Submission(self.last, [1] * tokens, max_tokens, RowControls(), 0.0, n=n)


@pytest.fixture
def submission() -> Ids:
    return Ids()


def tenant(**bounds: float) -> Tenant:
    return Tenant("acme", bounds=Bounds(**bounds))


def terms(name: str = "urgent", **bounds: float) -> Terms:
    return Terms(name, bounds=Bounds(**bounds))


HOLDERS = {
    "limits": lambda bounds: (Bounds(**bounds), ANYBODY, ANY_TERMS),
    "classes": lambda bounds: (Bounds(), ANYBODY, terms(**bounds)),
    "tenants": lambda bounds: (Bounds(), tenant(**bounds), ANY_TERMS),
}
KEYS = {"open": "max_open_requests", "waiting": "max_waiting", "tokens": "max_waiting_tokens"}


@pytest.mark.parametrize("bound", KEYS)
@pytest.mark.parametrize("holder", HOLDERS)
def test_as_much_as_may_be_is_let_in_and_no_more(holder, bound, submission) -> None:
    house, of, to = HOLDERS[holder]({bound: 4})
    room = Room(house)
    for _ in range(4):
        room.enter(of, to, [submission()])
    with pytest.raises(QuotaExceeded if holder == "tenants" else Overloaded) as refusal:
        room.enter(of, to, [submission()])
    assert refusal.value.limit == f"{holder}.{KEYS[bound]}"
    assert " 4 " in str(refusal.value)


def test_several_answers_and_several_prompts_count_as_sequences_all_or_none(submission) -> None:
    room = Room(Bounds(waiting=6))
    room.enter(ANYBODY, ANY_TERMS, [submission(n=2), submission(n=2)])
    with pytest.raises(Overloaded):
        room.enter(ANYBODY, ANY_TERMS, [submission(), submission(n=2)])
    room.enter(ANYBODY, ANY_TERMS, [submission(n=2)])


def test_one_class_or_tenant_that_is_full_is_in_nobody_elses_way(submission) -> None:
    room = Room(Bounds())
    full, other = terms("urgent", waiting=1), terms("batch", waiting=1)
    mine, theirs = tenant(waiting=2), Tenant("globex", bounds=Bounds(waiting=2))
    room.enter(mine, full, [submission()])
    with pytest.raises(Overloaded):
        room.enter(theirs, full, [submission()])
    room.enter(mine, other, [submission()])
    with pytest.raises(QuotaExceeded):
        room.enter(mine, Terms("third"), [submission()])
    room.enter(theirs, Terms("third"), [submission()])


def test_who_has_a_token_waits_no_more_and_is_open_until_it_leaves(submission) -> None:
    room = Room(Bounds(open=2, waiting=1))
    first, second = submission(), submission()
    room.enter(ANYBODY, ANY_TERMS, [first])
    room.answered(first.id, started=True)
    room.answered(first.id, started=True)
    room.enter(ANYBODY, ANY_TERMS, [second])
    room.answered(second.id, started=False)
    with pytest.raises(Overloaded, match="holds 2 sequences"):
        room.require()
    room.leave(ANYBODY, ANY_TERMS, [first])
    room.require()


def paced(room: Room, clock: VirtualClock, to: Terms, seconds: float, submission: Ids) -> None:
    """Let the room see a hundred small requests of a class start, one after the other."""
    for _ in range(100):
        one = submission()
        room.enter(ANYBODY, to, [one])
        clock.advance(seconds)
        room.answered(one.id, started=True)
        room.leave(ANYBODY, to, [one])


def test_who_would_wait_longer_than_may_be_is_refused_and_told_when_it_may_fit(submission) -> None:
    clock = VirtualClock()
    room = Room(Bounds(wait=10), clock)
    paced(room, clock, ANY_TERMS, 1.0, submission)
    for _ in range(9):
        room.enter(ANYBODY, ANY_TERMS, [submission()])
    room.enter(ANYBODY, ANY_TERMS, [submission()])
    with pytest.raises(Overloaded, match="may take 10 s") as refusal:
        room.enter(ANYBODY, ANY_TERMS, [submission()])
    assert refusal.value.limit == "limits.max_wait_s"
    assert 0 < refusal.value.retry_after <= 1.1
    with pytest.raises(Overloaded) as longer:
        room.enter(ANYBODY, ANY_TERMS, [submission(tokens=20)])
    assert longer.value.retry_after == pytest.approx(20, rel=0.1)


def test_a_class_waits_behind_its_own_and_may_have_a_tighter_bound(submission) -> None:
    clock = VirtualClock()
    room = Room(Bounds(wait=100), clock)
    urgent, batch = terms("urgent", wait=2), terms("batch", wait=math.inf)
    for to in (urgent, batch):
        paced(room, clock, to, 1.0, submission)
    for _ in range(50):
        room.enter(ANYBODY, batch, [submission()])
    room.enter(ANYBODY, urgent, [submission()])
    room.enter(ANYBODY, urgent, [submission()])
    with pytest.raises(Overloaded) as refusal:
        room.enter(ANYBODY, urgent, [submission()])
    assert refusal.value.limit == "classes.max_wait_s"
    assert room.expected_waits()["batch"] > 40 > room.expected_waits()["urgent"]


def test_where_nobody_waits_anybody_is_let_in_whatever_the_past_was_like(submission) -> None:
    clock = VirtualClock()
    room = Room(Bounds(wait=0.5), clock)
    paced(room, clock, ANY_TERMS, 3600.0, submission)
    room.enter(ANYBODY, ANY_TERMS, [submission(tokens=1000)])
    with pytest.raises(Overloaded):
        room.enter(ANYBODY, ANY_TERMS, [submission()])
    assert room.expected_waits().keys() == {"default"}


def test_answers_count_as_long_as_answers_were_so_far(submission) -> None:
    clock = VirtualClock()
    room = Room(Bounds(), clock)
    counters = Counters(admitted=10, generated_tokens=200)
    first = submission(tokens=4, max_tokens=1000)
    room.enter(ANYBODY, ANY_TERMS, [first], counters)
    clock.advance(44.0)  # a second for each unit of work, of which a token of an answer is two
    room.answered(first.id, started=True)
    room.enter(ANYBODY, ANY_TERMS, [submission(tokens=4, max_tokens=8)], counters)
    assert room.expected_waits()["default"] == pytest.approx(21 * 44 / 88)


TENANTS = [Tenant("a"), Tenant("b")]


@given(st.data())
def test_when_everybody_has_left_the_room_is_as_if_nobody_had_come(data) -> None:
    clock = VirtualClock()
    room, submission = Room(Bounds(open=12, waiting=8, tokens=40, wait=50), clock), Ids()
    inside: list[tuple[Tenant, Terms, list[Submission]]] = []
    for _ in range(data.draw(st.integers(0, 40))):
        clock.advance(data.draw(st.sampled_from([0.0, 0.5, 2.0])))
        what = data.draw(st.sampled_from(["enter", "start", "fail", "leave"]))
        if what == "enter":
            group = [
                submission(data.draw(st.integers(1, 9)), data.draw(st.integers(1, 3)))
                for _ in range(data.draw(st.integers(1, 2)))
            ]
            of = data.draw(st.sampled_from(TENANTS))
            to = data.draw(st.sampled_from([URGENT, BATCH]))
            with contextlib.suppress(Overloaded):
                room.enter(of, to, group)
                inside.append((of, to, group))
        elif inside:
            group = data.draw(st.sampled_from(inside))
            if what == "leave":
                inside.remove(group)
                room.leave(*group)
            else:
                for one in group[2]:
                    room.answered(one.id, started=what == "start")
    for group in inside:
        room.leave(*group)
    accounts = [room._house, *room._of_class.values(), *room._of_tenant.values()]
    assert all((a.open, a.waiting, a.tokens, a.pace.waiting) == (0,) * 4 for a in accounts)
    assert not room._waiting
