"""Block tables: how sequences take blocks from the pool, share a prompt, and give blocks back."""

from __future__ import annotations

from engine.batch import BLOCK
from engine.blocks import BlockPool, blocks_for
from engine.request import Sequence


class KVMemory:
    """The block tables of all sequences over one pool.

    Blocks that a step in flight may still write are not given back at once: they wait in the
    `limbo` of the step launched last and return when it has landed.
    """

    def __init__(self, pool: BlockPool) -> None:
        self.pool = pool
        self.limbo: list[int] = []

    def room(self, sequence: Sequence) -> int:
        """Tokens by which the sequence could grow with the blocks that are free now."""
        return (len(sequence.table) + self.pool.free) * BLOCK - sequence.reached

    def extend(self, sequence: Sequence, count: int) -> None:
        """Take blocks for `count` more tokens; there must be `room` for them."""
        table = sequence.table
        for _ in range(blocks_for(sequence.reached + count) - len(table)):
            table.append(self.pool.take())

    def fork(self, sequence: Sequence, source: Sequence) -> list[tuple[int, int]] | None:
        """Give `sequence` the prompt of its sibling: (source block, own block) pairs to copy.

        The last known token is left to compute, so that there are logits to sample from. None if
        the pool has not got enough blocks.
        """
        tokens = self.fork_tokens(sequence)
        needed = blocks_for(tokens)
        if needed > self.pool.free:
            return None
        sequence.table.extend(self.pool.take() for _ in range(needed))
        sequence.computed = tokens
        return list(zip(source.table, sequence.table, strict=False))

    @staticmethod
    def fork_tokens(sequence: Sequence) -> int:
        """Tokens that a sequence can take over from a sibling."""
        return min(sequence.request.prompt_length, len(sequence.tokens) - 1)

    def release(self, sequence: Sequence) -> None:
        """Take everything from a sequence, last block first, so that the next owner takes them in
        order."""
        in_flight = sequence.in_flight > 0
        while sequence.table:
            block = sequence.table.pop()
            if in_flight:
                self.limbo.append(block)
            else:
                self.pool.give(block)
        sequence.forget()

    def retire(self, sequence: Sequence, limbo: list[int]) -> None:
        """Take a finished sequence's blocks when the step whose limbo this is has landed."""
        limbo.extend(reversed(sequence.table))
        del sequence.table[:]
        sequence.forget()

    def trim(self, sequence: Sequence) -> None:
        """Give back the blocks beyond what is computed."""
        table = sequence.table
        while len(table) > blocks_for(sequence.computed):
            self.pool.give(table.pop())

    def give(self, blocks: list[int]) -> None:
        """Blocks of a step that has landed are free again."""
        for block in blocks:
            self.pool.give(block)
        blocks.clear()

    @staticmethod
    def committed(sequences: dict[Sequence, None]) -> int:
        """Blocks that running prompts still need for the tokens they were admitted with."""
        return sum(sequence.blocks_missing(sequence.prefill_end) for sequence in sequences)
