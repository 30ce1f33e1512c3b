"""What stood behind the same tokens before is guessed to come again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.prompt_lookup import LOOK_BACK, NgramIndex, Outlook


def latest(tokens: list[int], size: int) -> int | None:
    """What an index must find, by looking at every place."""
    places = range(len(tokens) - 1, size - 1, -1)
    return next((p for p in places if tokens[p - size : p] == tokens[len(tokens) - size :]), None)


@given(tokens=st.lists(st.integers(0, 2), max_size=60), size=st.integers(1, 4))
def test_an_index_finds_the_latest_earlier_occurrence(tokens, size) -> None:
    index, known = NgramIndex(size), []
    for place, token in enumerate(tokens):
        known.append(token)
        if place % 3:  # it need not be asked after each token
            assert index.find(known) == latest(known, size)


def test_an_index_is_bounded_and_still_finds_what_is_near() -> None:
    index, tokens = NgramIndex(2), []
    for number in range(5 * LOOK_BACK):
        tokens.append(number)
        index.find(tokens)
        assert len(index._places) <= 2 * LOOK_BACK + 1
    tokens += [5 * LOOK_BACK - 100, 5 * LOOK_BACK - 99]
    assert index.find(tokens) == 5 * LOOK_BACK - 98


def test_a_guess_goes_on_where_the_text_stood_before() -> None:
    outlook, tokens = Outlook(3), [1, 2, 3, 4, 5, 6, 9, 1, 2, 3]
    outlook.follow(tokens)
    assert outlook.draft(tokens, 3) == [4, 5, 6]


def test_a_guess_that_reaches_the_end_goes_round() -> None:
    outlook, tokens = Outlook(2), [7, 1, 2, 3, 1, 2, 3, 1, 2]
    outlook.follow(tokens)
    assert outlook.draft(tokens, 7) == [3, 1, 2, 3, 1, 2, 3]


def test_it_goes_on_behind_a_single_token_that_is_another() -> None:
    outlook, tokens = Outlook(3), [1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3]
    outlook.follow(tokens)
    tokens.append(40)
    outlook.follow(tokens)
    assert outlook.draft(tokens, 3) == [5, 6, 7]


def test_nothing_is_guessed_where_nothing_repeats() -> None:
    outlook, tokens = Outlook(3), []
    for number in range(300):
        tokens.append(number)
        outlook.follow(tokens)
        assert outlook.chances(8) == []


def chance(outlook: Outlook) -> float:
    return outlook.chances(1)[0]


def test_trust_grows_with_guesses_that_were_right_although_nobody_asked() -> None:
    outlook, tokens = Outlook(3), list(range(200))
    tokens += tokens[:3]
    outlook.follow(tokens)
    first = outlook.chances(8)
    assert first == sorted(first, reverse=True)
    for number in range(3, 100):
        tokens.append(number)
        outlook.follow(tokens)
    assert chance(outlook) > 0.95 > chance_of_new_match() == first[0]


def chance_of_new_match() -> float:
    outlook = Outlook(3)
    outlook.follow([1, 2, 3, 4, 1, 2, 3])
    return chance(outlook)


def test_trust_is_lost_with_guesses_that_are_wrong() -> None:
    outlook, tokens = Outlook(3), []
    for number in range(50):  # the same three tokens, and then always something else
        for token in (1, 2, 3, 1000 + number, 2000 + number, 3000 + number):
            tokens.append(token)
            outlook.follow(tokens)
    tokens += [1, 2, 3]
    outlook.follow(tokens)
    assert chance(outlook) < 0.1


@given(tokens=st.lists(st.integers(0, 3), min_size=1, max_size=200), pace=st.integers(1, 90))
def test_a_guess_is_always_of_the_known_tokens(tokens, pace) -> None:
    outlook = Outlook(2)
    for end in range(1, len(tokens) + 1, pace):
        outlook.follow(tokens[:end])
        chances = outlook.chances(20)
        assert all(0 < each < 1 for each in chances)
        if chances:
            assert len(outlook.draft(tokens[:end], 20)) == 20
