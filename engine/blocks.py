"""The pool of KV blocks: integers, reference counts, a free list and the prefix cache.

    free ───take──▶ owned ───publish──▶ owned, known by a key
     ▲              │   ▲                  │       ▲
     └─────give─────┘   │             give │       │ share
                        │                  ▼       │
                        └──take (evicts)── cached ─┘

An owned block has one owner or more. A block without owners is cached if it has a key, under which
it can still be found, else free. No tensors here.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable

from engine.batch import BLOCK
from engine.outputs import PoolSnapshot


def blocks_for(tokens: int) -> int:
    """Blocks that hold `tokens` tokens."""
    return -(-tokens // BLOCK)


class OutOfBlocks(Exception):
    """The pool is dry. Callers look at `free` first; seeing this is a bug in the scheduler."""


class BlockPool:
    """Fixed blocks 0 … total - 1. All is O(1), but for `match`, `snapshot`, `forget_all` and
    `check`.

    Free blocks are a stack: the one given back last is taken first, while its memory is still
    warm. Cached blocks are taken when no free one is left, least recently used first: so give the
    blocks of a sequence back last block first, and its prefix outlives its tail.

    evictions: cached blocks taken so far. on_change: called with (key, True) when a key becomes
    known and with (key, False) when it is forgotten; it must not call the pool's moves.
    """

    def __init__(self, total: int) -> None:
        if total < 1:
            raise ValueError(f"a pool needs at least one block, not {total}")
        self.total = total
        self.evictions = 0
        self.on_change: Callable[[bytes, bool], None] | None = None
        self._references = [0] * total
        self._free = list(range(total - 1, -1, -1))
        self._keys: list[bytes | None] = [None] * total
        self._known: dict[bytes, int] = {}
        # Blocks and when they lost their last owner. A plain dict would search for its oldest
        # entry past all that were deleted.
        self._cached: OrderedDict[int, int] = OrderedDict()
        self._given = 0

    @property
    def free(self) -> int:
        """Blocks that can be taken now, the cached ones included."""
        return len(self._free) + len(self._cached)

    @property
    def cached(self) -> int:
        """Blocks that nobody owns and whose content can still be found."""
        return len(self._cached)

    # ------------------------------------------------------------ ownership

    def take(self) -> int:
        """A block with unknown content, now with one owner."""
        return self.take_all(1)[0]

    def take_all(self, count: int) -> list[int]:
        """So many blocks with unknown content, in the order in which `take` would give them."""
        free, references = self._free, self._references
        blocks: list[int] = []
        for _ in range(count):
            if free:
                block = free.pop()
            elif self._cached:
                block = self._evict()
            else:
                raise OutOfBlocks(f"all {self.total} blocks are owned")
            references[block] = 1
            blocks.append(block)
        return blocks

    def share(self, block: int) -> None:
        """One more owner for a block that has one, or the first one for a cached block."""
        if self._references[block] == 0:
            if block not in self._cached:
                raise ValueError(f"block {block} has no owner to share it and no content")
            del self._cached[block]
        self._references[block] += 1

    def give(self, block: int) -> None:
        """One owner fewer; after the last one the block is cached, or free if it has no key."""
        self.give_all((block,))

    def give_all(self, blocks: Iterable[int]) -> None:
        """One owner fewer for each of the blocks, one after the other."""
        references, keys = self._references, self._keys
        for block in blocks:
            count = references[block] - 1
            if count < 0:
                raise ValueError(f"block {block} is free already")
            references[block] = count
            if count:
                continue
            if keys[block] is None:
                self._free.append(block)
            else:
                self._given += 1
                self._cached[block] = self._given

    def references(self, block: int) -> int:
        """How many own the block."""
        return self._references[block]

    def snapshot(self) -> PoolSnapshot:
        """A copy of who is owned and who is cached: two copies of plain lists, quick."""
        return PoolSnapshot(tuple(self._references), tuple(self._cached))

    # --------------------------------------------------------- prefix cache

    def publish(self, block: int, key: bytes) -> bool:
        """Let an owned block be found under `key`; its KV has been written and stays as it is.

        False, and nothing changes, if another block is known under the key: of blocks that were
        computed twice the second keeps no key, and is free when its owners have given it back.
        """
        if self._references[block] < 1:
            raise ValueError(f"block {block} has no owner to publish it")
        known = self._known.get(key)
        if known is not None:
            return known == block
        if self._keys[block] is not None:
            raise ValueError(f"block {block} has another key already")
        self._keys[block] = key
        self._known[key] = block
        if self.on_change is not None:
            self.on_change(key, True)
        return True

    def find(self, key: bytes) -> int | None:
        """The block known under the key, owned or cached. Changes nothing; `share` makes it
        yours."""
        return self._known.get(key)

    def match(self, keys: Iterable[bytes]) -> list[int]:
        """The blocks of the longest known prefix of `keys`. Changes nothing: share them all before
        the next `take`, which may evict them."""
        blocks: list[int] = []
        for key in keys:
            block = self._known.get(key)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def key_of(self, block: int) -> bytes | None:
        """The key under which the block is known."""
        return self._keys[block]

    def forget_all(self) -> None:
        """Empty the prefix cache: no block can be found any more, cached blocks are free."""
        keys = [self._forget(block) for block in list(self._known.values())]
        self._free.extend(self._cached)
        self._cached.clear()
        if self.on_change is not None:
            for key in keys:
                self.on_change(key, False)

    def _evict(self) -> int:
        """The least recently used cached block, now unknown."""
        block, _ = self._cached.popitem(last=False)
        self.evictions += 1
        key = self._forget(block)
        if self.on_change is not None:
            self.on_change(key, False)
        return block

    def _forget(self, block: int) -> bytes:
        """Part a block from its key."""
        key = self._keys[block]
        assert key is not None, "only known blocks are forgotten"
        self._keys[block] = None
        del self._known[key]
        return key

    # --------------------------------------------------------------- checks

    def check(self, tables: Iterable[Iterable[int]]) -> None:
        """Assert E1 against all block tables: every count equals its owners, nothing is lost, and
        what can be found is there."""
        owners = [0] * self.total
        for table in tables:
            for block in table:
                owners[block] += 1
        assert owners == self._references, "E1: reference counts differ from owners"
        self._check_places()
        self._check_keys()

    def _check_places(self) -> None:
        """Every block is in exactly one place: owned, free or cached."""
        free, owned = set(self._free), {b for b, count in enumerate(self._references) if count}
        assert len(free) == len(self._free), "E1: a block is free twice"
        assert not free & owned, "E1: a free block has an owner"
        assert not self._cached.keys() & owned, "E1: a cached block has an owner"
        assert not self._cached.keys() & free, "E1: a block is free and cached"
        assert len(owned) + self.free == self.total, "E1: blocks were lost"

    def _check_keys(self) -> None:
        """Keys and blocks are one to one, free blocks have none, cached ones are in order."""
        keyed = {block: key for block, key in enumerate(self._keys) if key is not None}
        known = {block: key for key, block in self._known.items()}
        assert len(known) == len(self._known), "E1: a block is known under two keys"
        assert keyed == known, "E1: blocks and keys disagree"
        idle = {block for block in keyed if self._references[block] == 0}
        assert idle == self._cached.keys(), "E1: cached blocks are not the known ones without owner"
        given = list(self._cached.values())
        assert given == sorted(given), "E1: cached blocks are not in order of use"
