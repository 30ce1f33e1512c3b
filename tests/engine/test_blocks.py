import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.blocks import BlockPool, OutOfBlocks, blocks_for


@pytest.mark.parametrize(
    ("tokens", "blocks"), [(0, 0), (1, 1), (15, 1), (16, 1), (17, 2), (32, 2), (33, 3)]
)
def test_blocks_for_rounds_up(tokens: int, blocks: int) -> None:
    assert blocks_for(tokens) == blocks


def test_the_block_given_back_last_is_taken_first() -> None:
    pool = BlockPool(8)
    blocks = [pool.take() for _ in range(4)]
    pool.give(blocks[1])
    pool.give(blocks[2])
    assert [pool.take(), pool.take()] == [blocks[2], blocks[1]]


def test_a_shared_block_is_free_only_after_its_last_owner() -> None:
    pool = BlockPool(2)
    block = pool.take()
    pool.share(block)
    pool.give(block)
    assert pool.free == 1
    pool.give(block)
    assert pool.free == 2


def test_a_dry_pool_raises_and_stays_whole() -> None:
    pool = BlockPool(1)
    block = pool.take()
    with pytest.raises(OutOfBlocks):
        pool.take()
    pool.check([[block]])


def test_giving_a_free_block_is_refused() -> None:
    pool = BlockPool(1)
    with pytest.raises(ValueError, match="free already"):
        pool.give(0)
    with pytest.raises(ValueError, match="no owner"):
        pool.share(0)


@pytest.mark.parametrize(
    "bug",
    [
        lambda pool, tables: tables[0].append(tables[1][0]),  # two owners, one reference
        lambda pool, tables: tables[0].pop(),  # an owned block that nobody holds
        lambda pool, tables: pool._free.append(tables[0][0]),  # free and owned
        lambda pool, tables: pool._free.pop(),  # lost
    ],
)
def test_check_notices_every_kind_of_drift(bug) -> None:
    pool = BlockPool(6)
    tables = [[pool.take(), pool.take()], [pool.take()]]
    pool.check(tables)
    bug(pool, tables)
    with pytest.raises(AssertionError, match="E1"):
        pool.check(tables)


class PoolMachine(RuleBasedStateMachine):
    """Owners take, share and give in any order; E1 holds after every move."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(5)
        self.tables: list[list[int]] = [[] for _ in range(3)]

    @precondition(lambda self: self.pool.free)
    @rule(owner=st.integers(0, 2))
    def take(self, owner: int) -> None:
        self.tables[owner].append(self.pool.take())

    @rule(source=st.integers(0, 2), heir=st.integers(0, 2))
    def share(self, source: int, heir: int) -> None:
        if self.tables[source]:
            block = self.tables[source][-1]
            self.pool.share(block)
            self.tables[heir].append(block)

    @rule(owner=st.integers(0, 2))
    def give(self, owner: int) -> None:
        if self.tables[owner]:
            self.pool.give(self.tables[owner].pop())

    @invariant()
    def whole(self) -> None:
        self.pool.check(self.tables)
        assert self.pool.free == 5 - len({b for table in self.tables for b in table})


PoolMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
test_any_order_of_moves_keeps_the_pool_whole = PoolMachine.TestCase
