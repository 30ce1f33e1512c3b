"""Reserving against paging: the same requests, the same pool, and who makes what of it."""

from __future__ import annotations

import pytest

from engine.allocation import PAGED, RESERVE
from loadtest.allocation_bench import (
    POOL_TOKENS,
    REQUESTS,
    Demand,
    Usage,
    compare,
    demands,
    measure,
    report,
)


@pytest.fixture(scope="module")
def usages() -> dict[str, Usage]:
    return compare(demands())


def test_the_mix_is_the_same_every_time_and_asks_for_more_than_it_gets() -> None:
    mix = demands()
    assert mix == demands()
    assert mix != demands(seed=1)
    assert len(mix) == REQUESTS
    assert all(1 <= each.answer <= each.max_tokens for each in mix)
    assert sum(each.max_tokens for each in mix) > 3 * sum(each.answer for each in mix)


def test_everybody_gets_the_whole_answer_either_way(usages: dict[str, Usage]) -> None:
    tokens = sum(each.answer for each in demands())
    for usage in usages.values():
        assert usage.output_tok_s * usage.seconds == pytest.approx(tokens)


def test_paged_sequences_waste_less_than_a_block_in_every_step(usages: dict[str, Usage]) -> None:
    assert usages["paged"].most_waste_per_sequence <= 15
    assert 0 < usages["paged"].waste_per_sequence <= 15


def test_reserving_runs_fewer_at_once_and_is_slower(usages: dict[str, Usage]) -> None:
    paged, reserve = usages["paged"], usages["reserve"]
    assert reserve.running < 0.7 * paged.running
    assert reserve.output_tok_s < 0.9 * paged.output_tok_s
    assert reserve.waste_fraction > 20 * paged.waste_fraction
    assert max(paged.held_tokens, reserve.held_tokens) <= POOL_TOKENS


def test_only_paging_pays_with_preemptions(usages: dict[str, Usage]) -> None:
    assert usages["paged"].preemptions > 0
    assert usages["reserve"].preemptions == usages["reserve"].recomputed_tokens == 0


def test_waste_is_what_is_held_and_not_computed() -> None:
    """One request of 16 + 16 tokens that asks for 33: a block or two paged, always three kept."""
    one = [Demand(prompt=16, answer=16, max_tokens=33)]
    reserve, paged = measure(RESERVE, one), measure(PAGED, one)
    # After the prompt's step 16 of 48 tokens are computed, after the next 17, and so on to 30; the
    # request has ended after the one that would make 31.
    assert reserve.most_waste_per_sequence == 48 - 16
    assert reserve.running == pytest.approx(paged.running)
    assert paged.most_waste_per_sequence == 15
    assert reserve.held_tokens > paged.held_tokens


def test_the_report_has_every_figure(usages: dict[str, Usage]) -> None:
    told = report(usages)
    assert told["paged"]["waste_fraction"] == pytest.approx(
        told["paged"]["waste_tokens"] / told["paged"]["held_tokens"]
    )
