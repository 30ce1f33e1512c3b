"""Block moves of the step being planned: what is read stays until the step is launched."""

from __future__ import annotations

import pytest
from support.engines import GREEDY

from engine.blocks import BlockPool
from engine.inbox import Submission
from engine.memory import KVMemory
from engine.moves import Moves
from engine.request import Request

REQUEST = Request(
    Submission(1, [1], 1, GREEDY, arrival=0.0), 0, KVMemory(BlockPool(4), cache=False)
)


@pytest.fixture
def pool() -> BlockPool:
    return BlockPool(4)


@pytest.fixture
def host() -> BlockPool:
    return BlockPool(2)


@pytest.fixture
def moves(pool: BlockPool, host: BlockPool) -> Moves:
    return Moves(pool, host)


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


def test_a_block_can_be_taken_in_the_step_that_offloads_it(pool, host, moves) -> None:
    block, place = pool.take(), host.take()
    moves.offload(block, place, REQUEST)
    moves.give(block)
    again = pool.take()
    assert again == block
    moves.copy(pool.take(), again, REQUEST)
    launched = moves.launch()
    assert launched.offloads == ((block, place),)
    assert launched.copies[0][1] == block
    assert host.references(place) == 1, "it holds the content now"


def test_a_host_block_is_not_taken_in_the_step_that_restores_from_it(pool, host, moves) -> None:
    place, block = host.take(), pool.take()
    moves.restore(place, block, REQUEST)
    moves.give_host(place)
    assert host.take() != place
    assert host.free == 0
    assert moves.held_host() == [place]
    assert moves.launch().restores == ((place, block),)
    assert host.take() == place


def test_what_is_given_back_is_neither_offloaded_to_nor_restored_to(pool, host, moves) -> None:
    block, place = pool.take(), host.take()
    moves.offload(block, place, REQUEST)
    moves.give_host(place)
    place, destination = host.take(), pool.take()
    moves.restore(place, destination, REQUEST)
    moves.give_host(place)
    moves.give(destination)
    assert host.free == host.total
    launched = moves.launch()
    assert launched.offloads == launched.restores == ()
    assert launched.requests == (REQUEST,)


def test_a_copy_of_what_is_restored_in_the_same_step_comes_after_it(pool, host, moves) -> None:
    place, first, second = host.take(), pool.take(), pool.take()
    moves.restore(place, first, REQUEST)
    moves.copy(first, second, REQUEST)
    moves.give(first)
    launched = moves.launch()
    assert launched.restores == ((place, first),)
    assert launched.copies == ((first, second),)


def test_content_is_where_the_step_finds_it_when_it_begins(pool, host, moves) -> None:
    plain, copied, restored, copied_again = (pool.take() for _ in range(4))
    moves.copy(plain, copied, REQUEST)
    moves.restore(host.take(), restored, REQUEST)
    moves.copy(restored, copied_again, REQUEST)
    contents = [moves.content(b) for b in (plain, copied, restored, copied_again)]
    assert contents == [plain, plain, None, None]
