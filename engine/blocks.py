"""The pool of KV blocks: integers, reference counts and a free list. No tensors here."""

from __future__ import annotations

from collections.abc import Iterable

from engine.batch import BLOCK


def blocks_for(tokens: int) -> int:
    """Blocks that hold `tokens` tokens."""
    return -(-tokens // BLOCK)


class OutOfBlocks(Exception):
    """The pool is dry. Callers look at `free` first; seeing this is a bug in the scheduler."""


class BlockPool:
    """Fixed blocks 0 … total - 1, each free or owned. Take and give back are O(1).

    The free list is a stack: the block given back last is taken first, while its memory is still
    warm.
    """

    def __init__(self, total: int) -> None:
        if total < 1:
            raise ValueError(f"a pool needs at least one block, not {total}")
        self.total = total
        self._references = [0] * total
        self._free = list(range(total - 1, -1, -1))

    @property
    def free(self) -> int:
        """Blocks that can be taken now."""
        return len(self._free)

    @property
    def cached(self) -> int:
        """Free blocks whose content can still be found. None before there is a prefix cache."""
        return 0

    def take(self) -> int:
        """A free block, now with one owner."""
        if not self._free:
            raise OutOfBlocks(f"all {self.total} blocks are owned")
        block = self._free.pop()
        self._references[block] = 1
        return block

    def share(self, block: int) -> None:
        """One more owner for a block that has one."""
        if self._references[block] < 1:
            raise ValueError(f"block {block} has no owner to share it")
        self._references[block] += 1

    def give(self, block: int) -> None:
        """One owner fewer; the last one frees the block."""
        count = self._references[block] - 1
        if count < 0:
            raise ValueError(f"block {block} is free already")
        self._references[block] = count
        if count == 0:
            self._free.append(block)

    def references(self, block: int) -> int:
        """How many own the block."""
        return self._references[block]

    def check(self, tables: Iterable[Iterable[int]]) -> None:
        """Assert E1 against all block tables: every count equals its owners, nothing is lost."""
        owners = [0] * self.total
        for table in tables:
            for block in table:
                owners[block] += 1
        assert owners == self._references, "E1: reference counts differ from owners"
        free = set(self._free)
        assert len(free) == len(self._free), "E1: a block is free twice"
        assert all(owners[block] == 0 for block in free), "E1: a free block has an owner"
        owned = sum(1 for count in owners if count)
        assert owned + len(free) == self.total, "E1: blocks were lost"
