"""The pool of blocks and its prefix cache, alone and beside a slow, obvious model of both."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.batch import BLOCK
from engine.blocks import BlockPool, OutOfBlocks, blocks_for
from engine.prefix import KeyChain, block_keys

A, B, C, D = (bytes([letter]) * 16 for letter in b"ABCD")
"""Keys, where it does not matter of what."""


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
        lambda pool, tables: pool._free.append(next(iter(pool._cached))),  # free and cached
        lambda pool, tables: pool._cached.update({tables[0][0]: 9}),  # owned and cached
        lambda pool, tables: pool._cached.popitem(),  # cached and lost
        lambda pool, tables: pool._cached.move_to_end(next(iter(pool._cached))),  # not by age
        lambda pool, tables: pool._known.update({D: pool._free[0]}),  # a key of a free block
        lambda pool, tables: pool._known.update({D: pool._known[A]}),  # two keys
        lambda pool, tables: pool._known.pop(A),  # a block that cannot be found
        lambda pool, tables: pool._keys.__setitem__(tables[1][0], C),  # one key, two blocks
    ],
)
def test_check_notices_every_kind_of_drift(bug) -> None:
    pool = BlockPool(6)
    tables = [[pool.take(), pool.take()], [pool.take()]]
    old, new = pool.take(), pool.take()
    for block, key in ((old, A), (new, B), (tables[0][0], C)):
        pool.publish(block, key)
    pool.give(old)
    pool.give(new)
    pool.check(tables)
    bug(pool, tables)
    with pytest.raises(AssertionError, match="E1"):
        pool.check(tables)


def cached_pool(total: int, keys: tuple[bytes, ...]) -> tuple[BlockPool, list[int]]:
    """A pool with these keys cached, the first one used longest ago, and their blocks."""
    pool = BlockPool(total)
    blocks = [pool.take() for _ in keys]
    for block, key in zip(blocks, keys, strict=True):
        assert pool.publish(block, key)
        pool.give(block)
    return pool, blocks


def test_a_published_block_is_found_with_an_owner_and_without() -> None:
    pool = BlockPool(2)
    block = pool.take()
    assert pool.find(A) is None
    assert pool.publish(block, A)
    assert (pool.find(A), pool.key_of(block), pool.cached) == (block, A, 0)
    pool.give(block)
    assert (pool.find(A), pool.cached, pool.free) == (block, 1, 2)
    pool.check([])


def test_sharing_a_cached_block_makes_it_owned_and_keeps_its_key() -> None:
    pool, (block,) = cached_pool(2, (A,))
    pool.share(block)
    assert (pool.references(block), pool.cached, pool.free) == (1, 0, 1)
    assert pool.find(A) == block
    pool.check([[block]])


def test_free_blocks_are_taken_before_cached_ones() -> None:
    pool, blocks = cached_pool(3, (A, B))
    assert pool.take() not in blocks
    assert (pool.cached, pool.evictions) == (2, 0)


def test_the_least_recently_used_is_evicted_first() -> None:
    pool, (a, b, c) = cached_pool(3, (A, B, C))
    pool.share(a)
    pool.give(a)
    assert [pool.take(), pool.take(), pool.take()] == [b, c, a]
    assert pool.evictions == 3


def test_an_evicted_block_is_found_no_more_and_may_get_another_key() -> None:
    pool, (block,) = cached_pool(1, (A,))
    assert pool.take() == block
    assert (pool.find(A), pool.key_of(block)) == (None, None)
    assert pool.publish(block, B)
    pool.check([[block]])


def test_a_block_computed_twice_keeps_no_key_and_does_not_leak() -> None:
    pool = BlockPool(2)
    first, second = pool.take(), pool.take()
    assert pool.publish(first, A)
    assert not pool.publish(second, A)
    pool.check([[first], [second]])
    pool.give(second)
    pool.give(first)
    assert (pool.free, pool.cached, pool.find(A)) == (2, 1, first)


def test_publishing_the_same_again_changes_nothing() -> None:
    pool = BlockPool(1)
    block = pool.take()
    assert pool.publish(block, A)
    assert pool.publish(block, A)
    pool.check([[block]])


def test_publishing_what_has_no_owner_or_another_key_is_refused() -> None:
    pool, (block,) = cached_pool(2, (A,))
    with pytest.raises(ValueError, match="no owner"):
        pool.publish(block, A)
    pool.share(block)
    with pytest.raises(ValueError, match="another key"):
        pool.publish(block, B)
    pool.check([[block]])


def test_match_ends_at_the_first_unknown_key_and_moves_nothing() -> None:
    pool, (a, b, c) = cached_pool(3, (A, B, C))
    assert pool.match([A, B, D, C]) == [a, b]
    assert pool.match([D, A]) == []
    assert pool.match([]) == []
    assert [pool.take() for _ in range(3)] == [a, b, c], "looking is not using"


def test_a_cache_reset_frees_cached_blocks_and_leaves_owners_alone() -> None:
    pool, (_, b) = cached_pool(3, (A, B))
    pool.share(b)
    pool.forget_all()
    assert (pool.find(A), pool.find(B), pool.cached, pool.free) == (None, None, 0, 2)
    assert pool.evictions == 0
    pool.check([[b]])
    pool.give(b)
    assert {pool.take() for _ in range(3)} == {0, 1, 2}


def test_every_key_that_comes_or_goes_is_told_once() -> None:
    heard: list[tuple[bytes, bool]] = []
    pool, _ = cached_pool(2, (A, B))
    pool.on_change = lambda key, known: heard.append((key, known))
    block = pool.take()
    pool.publish(block, C)
    pool.publish(block, C)
    pool.forget_all()
    assert heard == [(A, False), (C, True), (B, False), (C, False)]


# ------------------------------------------------ beside a slow, obvious model

Prefix = tuple[bytes, tuple[int, ...]]
"""A salt and all tokens up to some point: what the KV at that point depends on."""


@dataclass(eq=False)
class Owner:
    """A sequence: known tokens, of which the first `written` have their KV in its blocks."""

    salt: bytes
    tokens: list[int]
    table: list[int] = field(default_factory=list)
    written: int = 0

    def __post_init__(self) -> None:
        self.chain = KeyChain(self.salt, block_keys(self.tokens, self.salt))

    def prefix(self, tokens: int) -> Prefix:
        return self.salt, tuple(self.tokens[:tokens])


class World:
    """Sequences that live in a pool, as the engine lets them, and what the pool ought to say.

    content: what was last written into each block. known: the block of each published prefix.
    idle: known blocks that nobody owns, least recently used first. seen: how often what happened.
    """

    def __init__(self, total: int, pool_type: type[BlockPool] = BlockPool) -> None:
        self.total = total
        self.pool = pool_type(total)
        self.pool.on_change = self._hear
        self.live: list[Owner] = []
        self.content: list[Prefix | None] = [None] * total
        self.known: dict[Prefix, int] = {}
        self.idle: list[int] = []
        self.heard: set[bytes] = set()
        self.seen: Counter[str] = Counter()

    # what sequences do

    def start(self, salt: bytes, tokens: list[int]) -> None:
        """A request comes: it shares the longest cached prefix, its last token excepted."""
        owner = Owner(salt, list(tokens))
        found = self.match(salt, tokens)[: (len(tokens) - 1) // BLOCK]
        self.live.append(owner)
        for block in found:
            self.seen["revived" if block in self.idle else "hit"] += 1
            self._share(owner, block)
        owner.written = len(found) * BLOCK
        self._grow(owner, [])

    def append(self, owner: Owner, tokens: list[int]) -> None:
        """Tokens come to be known; there may be no blocks for them."""
        self._grow(owner, tokens)

    def write(self, owner: Owner) -> None:
        """Compute all known tokens. A block that others own as well is copied first."""
        for index in range(owner.written // BLOCK, len(owner.table)):
            if not self._own(owner, index):
                self.abort(owner)
                return
            block = owner.table[index]
            assert self.pool.references(block) == 1, "E1: a block being written has one owner"
            assert self.pool.key_of(block) is None, "what can be found must not change"
            if index * BLOCK < owner.written:
                assert self.content[block] == owner.prefix(owner.written), "KV was lost"
            self.content[block] = owner.prefix((index + 1) * BLOCK)
        owner.written = len(owner.tokens)

    def publish(self, owner: Owner) -> None:
        """Let every full block be found."""
        owner.chain.grow(owner.tokens)
        for index in range(self.publishable(owner)):
            block, prefix = owner.table[index], owner.prefix((index + 1) * BLOCK)
            first = self.known.setdefault(prefix, block)
            self.seen["duplicate"] += first != block
            published = self.pool.publish(block, owner.chain.keys[index])
            assert published == (first == block), "two prefixes have one key, or one prefix two"

    def publishable(self, owner: Owner) -> int:
        return owner.written // BLOCK

    def fork(self, owner: Owner) -> None:
        """A second sequence with the same tokens shares every block."""
        twin = Owner(owner.salt, list(owner.tokens), written=owner.written)
        self.live.append(twin)
        for block in owner.table:
            self._share(twin, block)

    def abort(self, owner: Owner) -> None:
        """Give everything back, last block first."""
        while owner.table:
            self._give(owner.table.pop())
        self.live.remove(owner)

    def crowd(self, blocks: int) -> None:
        """A stranger takes so many blocks, if there are, and leaves."""
        stranger = Owner(b"", [])
        self.live.append(stranger)
        for _ in range(min(blocks, self._room())):
            self._take(stranger)
        self.abort(stranger)

    def forget_all(self) -> None:
        self.pool.forget_all()
        self.known.clear()
        self.idle.clear()

    def match(self, salt: bytes, tokens: list[int]) -> list[int]:
        """The blocks of the longest cached prefix: they hold what was asked for, and no more would
        have been found by looking at every published prefix."""
        found = self.pool.match(block_keys(tokens, salt))
        prefixes = [(salt, tuple(tokens[:end])) for end in range(BLOCK, len(tokens) + 1, BLOCK)]
        for block, prefix in zip(found, prefixes, strict=False):
            assert self.content[block] == prefix, "a match holds something else"
        unknown = [index for index, prefix in enumerate(prefixes) if prefix not in self.known]
        length = unknown[0] if unknown else len(prefixes)
        longest = [self.known[prefix] for prefix in prefixes[:length]]
        assert found == longest, "a match is not the longest published prefix"
        return found

    def check(self) -> None:
        """E1, and the pool agrees with the model."""
        self.pool.check([owner.table for owner in self.live])
        assert self.pool.free == self._room()
        assert self.pool.cached == len(self.idle)
        assert self.pool.evictions == self.seen["evicted"]
        assert len(self.heard) == len(self.known)
        for prefix, block in self.known.items():
            key = self.pool.key_of(block)
            assert key in self.heard
            assert self.pool.find(key) == block
            assert self.content[block] == prefix, "published before it was written"

    def end(self) -> None:
        """Everybody leaves: as if they had never been, but for what is cached (E12)."""
        for owner in list(self.live):
            self.abort(owner)
        self.check()
        assert self.pool.free == self.total
        self.forget_all()
        self.check()
        assert self.pool.cached == 0

    # what that means for blocks

    def _owned(self) -> set[int]:
        return {block for owner in self.live for block in owner.table}

    def _room(self) -> int:
        return self.total - len(self._owned())

    def _grow(self, owner: Owner, tokens: list[int]) -> None:
        """Add the tokens and their blocks, or, with too few blocks, end the sequence."""
        missing = blocks_for(len(owner.tokens) + len(tokens)) - len(owner.table)
        if missing > self._room():
            self.seen["dry"] += 1
            self.abort(owner)
            return
        owner.tokens += tokens
        for _ in range(missing):
            self._take(owner)

    def _own(self, owner: Owner, index: int) -> bool:
        """Make a block of the table private by copying it, if others own it; False: no block."""
        old = owner.table[index]
        if sum(old in other.table for other in self.live) == 1:
            return True
        if not self._room():
            return False
        self._take(owner)
        owner.table[index] = new = owner.table.pop()
        self.content[new] = self.content[old]
        self._give(old)
        self.seen["copied"] += 1
        return True

    def _take(self, owner: Owner) -> None:
        free = self._room() - len(self.idle)
        block = self.pool.take()
        if not free:
            self.seen["evicted"] += 1
            assert block == self.idle.pop(0), "not the least recently used"
            self.known = {prefix: b for prefix, b in self.known.items() if b != block}
        assert block not in self.idle, "a cached block was taken while others were free"
        assert block not in self._owned(), "a block with an owner was taken"
        self.content[block] = None
        owner.table.append(block)

    def _share(self, owner: Owner, block: int) -> None:
        self.pool.share(block)
        owner.table.append(block)
        if block in self.idle:
            self.idle.remove(block)

    def _give(self, block: int) -> None:
        """Give a block back that has left its owner's table."""
        self.pool.give(block)
        if block in self.known.values() and block not in self._owned():
            self.idle.append(block)

    def _hear(self, key: bytes, known: bool) -> None:
        assert (key in self.heard) != known, "told twice"
        (self.heard.add if known else self.heard.remove)(key)


SALTS = (b"", b"tenant")
LENGTHS = (1, 15, 16, 17, 33)


class PoolMachine(RuleBasedStateMachine):
    """Sequences come, grow, fork, publish and leave in any order; the model holds after each."""

    pieces = st.lists(
        st.tuples(st.integers(0, 1), st.sampled_from(LENGTHS)), min_size=1, max_size=2
    ).map(lambda pieces: [token for token, count in pieces for _ in range(count)])
    any_of = st.integers(0, 3)

    def __init__(self) -> None:
        super().__init__()
        self.world = World(7)

    def one(self, number: int) -> Owner:
        return self.world.live[number % len(self.world.live)]

    some = precondition(lambda self: self.world.live)
    few = precondition(lambda self: len(self.world.live) < 4)

    @few
    @rule(salt=st.sampled_from(SALTS), tokens=pieces)
    def start(self, salt: bytes, tokens: list[int]) -> None:
        self.world.start(salt, tokens)

    @some
    @rule(number=any_of, tokens=pieces)
    def append(self, number: int, tokens: list[int]) -> None:
        self.world.append(self.one(number), tokens)

    @some
    @rule(number=any_of)
    def write(self, number: int) -> None:
        self.world.write(self.one(number))

    @some
    @rule(number=any_of)
    def publish(self, number: int) -> None:
        self.world.publish(self.one(number))

    @some
    @few
    @rule(number=any_of)
    def fork(self, number: int) -> None:
        self.world.fork(self.one(number))

    @some
    @rule(number=any_of)
    def finish(self, number: int) -> None:
        self.world.publish(self.one(number))
        self.world.abort(self.one(number))

    @some
    @rule(number=any_of)
    def abort(self, number: int) -> None:
        self.world.abort(self.one(number))

    @rule(salt=st.sampled_from(SALTS), tokens=pieces)
    def match(self, salt: bytes, tokens: list[int]) -> None:
        self.world.match(salt, tokens)

    @rule(blocks=st.integers(1, 7))
    def evict(self, blocks: int) -> None:
        self.world.crowd(blocks)

    @rule()
    def forget_all(self) -> None:
        self.world.forget_all()

    @invariant()
    def holds(self) -> None:
        self.world.check()

    def teardown(self) -> None:
        self.world.end()


PoolMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=40)
test_any_order_of_moves_keeps_pool_and_cache_whole = PoolMachine.TestCase


def walk(world: World, steps: int, seed: int) -> None:
    """So many random moves; the model is asked after each."""
    chance = random.Random(seed)
    moves = {"start": 6, "append": 6, "write": 8, "publish": 6, "fork": 2}
    moves |= {"finish": 3, "abort": 2, "match": 2, "crowd": 1, "forget_all": 0.05}
    names, weights = list(moves), list(moves.values())
    for _ in range(steps):
        (name,) = chance.choices(names, weights)
        tokens = [chance.randrange(2)] * chance.choice(LENGTHS)
        tokens += [chance.randrange(2)] * chance.choice(LENGTHS)
        one = chance.choice(world.live) if world.live else None
        match name:
            case "start" if len(world.live) < 6:
                world.start(chance.choice(SALTS), tokens)
            case "match":
                world.match(chance.choice(SALTS), tokens)
            case "crowd":
                world.crowd(chance.randrange(world.total))
            case "forget_all":
                world.forget_all()
            case "append" if one:
                world.append(one, tokens)
            case "fork" if one and len(world.live) < 6:
                world.fork(one)
            case "finish" if one:
                world.publish(one)
                world.abort(one)
            case "write" | "publish" | "abort" if one:
                getattr(world, name)(one)
        world.check()
    world.end()


EVENTS = {"hit", "revived", "evicted", "duplicate", "copied", "dry"}


def test_a_walk_meets_everything_that_can_happen() -> None:
    world = World(14)
    walk(world, 2_000, seed=1)
    assert {event for event in EVENTS if world.seen[event] > 5} == EVENTS


@pytest.mark.slow
def test_a_long_walk_keeps_pool_and_cache_whole() -> None:
    world = World(24)
    walk(world, 100_000, seed=2)
    assert {event for event in EVENTS if world.seen[event] > 200} == EVENTS
