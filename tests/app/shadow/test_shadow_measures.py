"""A window counts what happens in it, of the whole and of each group."""

import pytest

from app.shadow.measures import MEASURES, MOST_GROUPS, OTHERS, Whose, Window


def whose(key: int, arrival: float = 0.0, tenant: str = "a") -> Whose:
    return Whose(key, arrival, tenant, "chat")


def test_of_nothing_there_is_nothing_to_tell():
    score = Window(0.0).score(10.0)
    assert [*score.whole] == [*MEASURES]
    known = {measure: value for measure, value in score.whole.items() if value is not None}
    assert known == {"output_tok_s": 0.0, "shed": 0.0}


def test_a_first_token_counts_for_the_window_in_which_its_request_came():
    window = Window(10.0)
    window.began(whose(1, 9.0), 11.0)
    assert window.score(20.0).whole["ttft_s"] is None
    window = Window(10.0)
    window.arrived(whose(2, 11.0))
    window.began(whose(2, 11.0), 12.5)
    window.began(whose(2, 11.0), 19.0)  # of another sequence
    assert window.score(20.0).whole["ttft_s"] == 1.5


def test_groups_are_told_apart():
    window = Window(0.0)
    for key, tenant in ((1, "a"), (2, "b")):
        window.arrived(whose(key, 0.0, tenant))
        window.began(whose(key, 0.0, tenant), float(key))
        window.came(whose(key, 0.0, tenant), 10, None)
    score = window.score(10.0)
    assert score.by_tenant["a"]["ttft_s"] == 1.0
    assert score.by_tenant["b"]["ttft_s"] == 2.0
    assert score.by_class["chat"]["ttft_s"] == 1.5
    assert score.by_class["chat"]["output_tok_s"] == pytest.approx(2.0)


def test_names_that_clients_make_up_take_no_more_than_so_much_memory():
    window = Window(0.0)
    for key in range(10 * MOST_GROUPS):
        window.came(whose(key, 0.0, f"tenant {key}"), 1, None)
    score = window.score(1.0)
    assert len(score.by_tenant) == MOST_GROUPS + 1
    assert score.by_tenant[OTHERS]["output_tok_s"] == 9 * MOST_GROUPS
