"""Token buckets: exact levels, refunds, and what no sequence of requests can get beyond."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.quota import Bucket, Budget, Charge, Rate, TooLarge, duration
from engine.clock import VirtualClock


def level(budget: Budget, what: str = "tokens") -> float:
    return budget._buckets[what].level(budget._clock.now())


def test_a_bucket_starts_full_is_taken_from_and_refills_up_to_its_size() -> None:
    bucket = Bucket(per_minute=60, size=10, now=0.0)
    bucket.add(-8, 0.0)
    assert [bucket.level(now) for now in (0, 1, 5, 8, 1000)] == [2, 3, 7, 10, 10]
    assert bucket.wait(2, 0.0) == 0
    assert bucket.wait(5, 0.0) == 3
    assert bucket.wait(11, 0.0) == math.inf


def test_what_does_not_fit_is_told_with_when_it_will_and_then_it_does() -> None:
    clock = VirtualClock()
    budget = Budget(Rate(requests=60, tokens=600), clock)
    budget.charge(500)
    short = budget.shortage(200)
    assert short is not None
    assert (short.what, short.left, short.size, short.seconds) == ("tokens", 100, 600, 10)
    clock.advance(short.seconds)
    assert budget.shortage(200) is None


def test_of_two_limits_the_one_that_lasts_longer_is_told() -> None:
    budget = Budget(Rate(requests=1, tokens=600), VirtualClock())
    budget.charge(600)
    short = budget.shortage(1)
    assert short is not None
    assert (short.what, short.seconds) == ("requests", 60)


def test_what_never_fits_is_told_apart_even_while_nothing_is_left() -> None:
    budget = Budget(Rate(tokens=600, burst_s=30), VirtualClock())
    budget.charge(300)
    with pytest.raises(TooLarge) as error:
        budget.shortage(301)
    assert (error.value.tokens, error.value.size) == (301, 300)


def test_one_request_always_fits_into_a_full_bucket_of_requests() -> None:
    budget = Budget(Rate(requests=1, burst_s=0.5), VirtualClock())
    assert budget.shortage() is None


@pytest.mark.parametrize(
    ("used", "refused", "tokens", "requests"),
    [(0, True, 600, 60), (0, False, 600, 59), (40, False, 560, 59), (100, False, 500, 59)],
)
def test_what_was_not_used_comes_back_however_it_ends(used, refused, tokens, requests) -> None:
    budget = Budget(Rate(requests=60, tokens=600), VirtualClock())
    charge = budget.charge(100)
    assert (level(budget), level(budget, "requests")) == (500, 59)
    charge.settle(used, refused=refused)
    assert (level(budget), level(budget, "requests")) == (tokens, requests)


def test_more_than_was_charged_is_owed_and_has_to_refill_first() -> None:
    clock = VirtualClock()
    budget = Budget(Rate(tokens=60), clock)
    budget.charge(50).settle(80, refused=False)
    assert level(budget) == -20
    assert dict(budget.headers())["x-ratelimit-remaining-tokens"] == "0"
    short = budget.shortage(1)
    assert short is not None
    assert short.seconds == 21


def test_another_rate_keeps_what_is_left_and_what_is_owed() -> None:
    clock = VirtualClock()
    budget = Budget(Rate(requests=60, tokens=600), clock)
    charge = budget.charge(400)
    budget.adopt(Rate(requests=60, tokens=6000))
    assert level(budget) == 200
    budget.adopt(Rate(requests=60, tokens=120))
    assert level(budget) == 120
    charge.settle(400, refused=False)
    assert level(budget) == 120
    budget.adopt(Rate(requests=30))
    assert dict(budget.headers()).keys() == {
        f"x-ratelimit-{of}-requests" for of in ("limit", "remaining", "reset")
    }


def test_the_headers_say_what_openais_say() -> None:
    clock = VirtualClock()
    budget = Budget(Rate(requests=60, tokens=6000), clock)
    budget.charge(1500)
    assert dict(budget.headers()) == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "59",
        "x-ratelimit-reset-requests": "1s",
        "x-ratelimit-limit-tokens": "6000",
        "x-ratelimit-remaining-tokens": "4500",
        "x-ratelimit-reset-tokens": "15s",
    }


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0ms"),
        (0.0201, "21ms"),
        (0.9999, "1s"),
        (8.64, "8.64s"),
        (59.9999, "1m0s"),
        (360, "6m0s"),
        (3661, "1h1m1s"),
    ],
)
def test_times_are_written_as_openai_writes_them(seconds, text) -> None:
    assert duration(seconds) == text


SIZE, PER_MINUTE = 64, 120
MOVES = st.lists(
    st.tuples(
        st.sampled_from(["ask", "serve", "leave", "refuse", "overrun", "wait"]),
        st.integers(1, SIZE),
    ),
    max_size=80,
)


@given(MOVES)
def test_nobody_gets_more_than_the_bucket_and_its_refill_and_every_token_is_accounted_for(
    moves,
) -> None:
    """Times are multiples of an eighth and tokens whole numbers, so that floats are exact."""
    clock = VirtualClock()
    budget = Budget(Rate(tokens=PER_MINUTE, burst_s=60 * SIZE / PER_MINUTE), clock)
    waiting: list[tuple[Charge, int]] = []
    charged = refunded = used = overrun = 0
    for move, amount in moves:
        if move == "wait":
            clock.advance(amount / 8)
        elif move == "ask":
            short = budget.shortage(amount)
            assert (short is None) == (level(budget) >= amount)
            if short is None:
                waiting.append((budget.charge(amount), amount))
                charged += amount
        elif waiting:
            charge, most = waiting.pop(amount % len(waiting))
            uses = {"serve": most, "leave": most // 2, "refuse": 0, "overrun": most + 3}[move]
            charge.settle(uses, refused=move == "refuse")
            refunded += charge.refunded
            used += uses
            overrun += max(0, uses - most)
        reserved = sum(most for _, most in waiting)
        assert charged - refunded == used + reserved
        assert -overrun <= level(budget) <= SIZE
        assert used + reserved <= SIZE + clock.now() * PER_MINUTE / 60 + overrun


def test_the_level_is_exact_while_the_bucket_never_runs_over() -> None:
    clock = VirtualClock()
    budget = Budget(Rate(tokens=60, burst_s=1000), clock)
    charges = [budget.charge(100) for _ in range(10)]
    for number, charge in enumerate(charges):
        clock.advance(1)
        charge.settle(10 * number, refused=False)
    assert level(budget) == 1000 - sum(10 * number for number in range(10)) + 10
