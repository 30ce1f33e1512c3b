"""Block moves of the step being planned: what is read stays until the step is launched."""

from __future__ import annotations

import pytest
from support.engines import GREEDY

from engine.blocks import BlockPool
from engine.inbox import Submission
from engine.moves import Moves
from engine.request import Request

REQUEST = Request(Submission(1, [1], 1, GREEDY, arrival=0.0), 0)


@pytest.fixture
def pool() -> BlockPool:
    return BlockPool(4)


@pytest.fixture
def moves(pool: BlockPool) -> Moves:
    return Moves(pool)


def test_what_a_copy_reads_is_not_taken_before_the_step_is_launched(pool, moves) -> None:
    source, destination = pool.take(), pool.take()
    moves.copy(source, destination, REQUEST)
    moves.give(source)
    assert source not in {pool.take(), pool.take()}
    assert pool.free == 0
    launched = moves.launch()
    assert launched.copies == ((source, destination),)
    assert launched.requests == (REQUEST,)
    assert pool.take() == source
    assert moves.launch().copies == ()


def test_what_holds_a_block_for_a_copy_is_no_owner(pool, moves) -> None:
    source, destination = pool.take(), pool.take()
    moves.copy(source, destination, REQUEST)
    assert (pool.references(source), moves.owners(source)) == (2, 1)
    assert moves.held() == [source]
    pool.check([[source, destination], moves.held()])


def test_a_destination_given_back_takes_its_copy_with_it(pool, moves) -> None:
    source, destination = pool.take(), pool.take()
    moves.copy(source, destination, REQUEST)
    moves.give(source)
    pool.share(destination)
    moves.give(destination)
    assert moves.held() == [source], "it has an owner still"
    moves.give(destination)
    assert pool.free == pool.total
    assert moves.launch().copies == ()


def test_a_copy_of_what_is_to_be_copied_reads_where_the_content_is(pool, moves) -> None:
    source, between, last = pool.take(), pool.take(), pool.take()
    moves.copy(source, between, REQUEST)
    moves.copy(between, last, REQUEST)
    moves.give(source)
    moves.give(between)
    assert moves.launch().copies == ((source, last),)
    assert pool.references(source) == pool.references(between) == 0
