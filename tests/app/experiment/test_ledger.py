"""What counts for which period, and when a period is complete."""

import pytest

from app.experiment.ledger import Ledger
from app.experiment.measures import as_change, difference
from app.experiment.schedule import Turn
from engine.controls import RowControls
from engine.inbox import Submission

PATIENCE = 10.0


def request(number: int, at: float, tenant: str = "a", slo_class: str = "default") -> Submission:
    return Submission(
        id=number,
        prompt=[1],
        max_tokens=8,
        controls=RowControls(),
        arrival=at,
        tenant=tenant,
        slo_class=slo_class,
    )


def ledger() -> Ledger:
    return Ledger(arms=2, patience=PATIENCE)


def serve(book: Ledger, each: Submission, first: float, gaps: list[float]) -> None:
    """A request that is served while nothing else happens."""
    book.arrived(each)
    at = each.arrival + first
    book.came(each, 1, None, at)
    book.began(each, first, 0)
    for gap in gaps:
        at += gap
        book.came(each, 1, gap, at)
    book.over(each, "served", None)


def test_a_block_is_complete_when_each_arm_had_its_turn():
    book = ledger()
    book.begin(Turn(0, 1), 0.0)
    serve(book, request(1, 1.0), 0.5, [0.1, 0.3])
    book.close(10.0)
    assert not book.settle(10.0)
    book.begin(Turn(0, 0), 10.0)
    serve(book, request(2, 11.0), 0.25, [0.1])
    book.close(20.0)
    assert book.settle(20.0)
    (block,) = book.blocks
    assert block[1].whole["ttft_s"] == 0.5
    assert block[1].whole["itl_s"] == pytest.approx(0.2)
    assert block[1].whole["output_tok_s"] == pytest.approx(0.3)
    assert block[0].whole["ttft_s"] == 0.25
    assert block[0].requests == 1


def test_what_comes_during_the_washout_counts_for_nobody():
    book = ledger()
    period = book.begin(Turn(0, 0), 5.0)
    serve(book, request(1, 1.0), 0.5, [0.1])
    assert period.requests == 0
    assert period.whole.tokens == 0
    serve(book, request(2, 4.9), 0.5, [0.1])  # its tokens come when it has opened
    assert period.requests == 0
    assert period.whole.tokens == 2
    assert period.whole.first == 0


def test_who_came_before_a_switch_counts_for_the_arm_that_it_found():
    book = ledger()
    book.begin(Turn(0, 0), 0.0)
    each = request(1, 9.0)
    book.arrived(each)
    book.close(10.0)
    book.begin(Turn(0, 1), 12.0)
    assert not book.settle(15.0), "it has not ended, and is waited for"
    book.came(each, 1, None, 16.0)
    book.began(each, 7.0, 0)
    book.over(each, "served", True)
    book.close(20.0)
    assert book.settle(20.0)
    (block,) = book.blocks
    assert block[0].whole["ttft_s"] == 7.0
    assert block[0].whole["attained"] == 1.0
    assert block[0].spanned == 1
    assert block[1].whole["ttft_s"] is None
    assert block[1].whole["output_tok_s"] == pytest.approx(1 / 8)


def test_who_is_never_served_counts_as_having_waited_until_nobody_waits_any_more():
    book = ledger()
    book.begin(Turn(0, 0), 0.0)
    book.arrived(request(1, 4.0))
    book.close(10.0)
    book.begin(Turn(0, 1), 10.0)
    book.close(20.0)
    assert not book.settle(19.9)
    assert book.settle(20.0)
    assert book.blocks[0][0].whole["ttft_s"] == 16.0


def test_groups_are_told_apart():
    book = ledger()
    period = book.begin(Turn(0, 0), 0.0)
    serve(book, request(1, 1.0, "a", "chat"), 1.0, [])
    serve(book, request(2, 2.0, "b", "chat"), 3.0, [])
    assert period.of_tenant["a"].waited == 1.0
    assert period.of_tenant["b"].waited == 3.0
    assert period.of_class["chat"].waited == 4.0


def test_failures_are_a_share_and_who_left_has_not_failed():
    book = ledger()
    period = book.begin(Turn(0, 0), 0.0)
    for number, outcome in enumerate(("served", "rejected", "error", "abort")):
        book.arrived(request(number, 1.0))
        book.over(request(number, 1.0), outcome, outcome == "served" or None)
    assert period.whole.measured(1.0)["failed"] == 0.5
    assert period.whole.measured(1.0)["attained"] == 1.0


def test_nothing_is_kept_of_requests_that_are_over():
    book = ledger()
    book.begin(Turn(0, 0), 0.0)
    for number in range(50):
        serve(book, request(number, 1.0 + number / 100), 0.5, [0.1])
    assert not book._of_request
    assert not book.current._open
    assert not book.current._begun


@pytest.mark.parametrize(
    ("base", "other", "change"), [(2.0, 3.0, 0.5), (3.0, 2.0, -1 / 3), (1.0, 1.0, 0.0)]
)
def test_a_difference_stands_for_the_relative_change(base, other, change):
    assert as_change(difference(base, other)) == pytest.approx(change)
    assert difference(other, base) == -difference(base, other)
