"""Block tables: how sequences take blocks, find them cached, share them, and give them back."""

from __future__ import annotations

from collections import Counter

from engine.allocation import PAGED, Allocation
from engine.batch import BLOCK
from engine.blocks import BlockPool, blocks_for
from engine.moves import Moves
from engine.outside import OUTSIDE, Outside
from engine.prefix import KeyChain
from engine.request import Request, Sequence


class KVMemory:
    """The block tables of all sequences over one pool.

    Blocks that a step in flight may still write are not given back at once: they wait in the
    `limbo` of the step launched last and return when it has landed. moves: what the step being
    planned moves first. cache: whether full blocks are published, and found again by requests
    that begin alike. allocation: how many blocks a running sequence holds. host: blocks of host
    memory, if there are any. outside: names blocks. Raises ValueError for a cache without sharing.
    """

    def __init__(
        self,
        pool: BlockPool,
        *,
        cache: bool,
        allocation: Allocation = PAGED,
        host: BlockPool | None = None,
        outside: Outside = OUTSIDE,
    ) -> None:
        if cache and not allocation.shares:
            raise ValueError("a prefix cache needs an allocation that shares blocks")
        self.pool = pool
        self.cache = cache
        self.allocation = allocation
        self.host = host
        self._outside = outside
        self.moves = Moves(pool, host)
        self.limbo: list[int] = []

    # ---------------------------------------------------------------- growing

    def needs(self, sequence: Sequence, count: int) -> int:
        """Blocks to take before `count` more tokens can be written."""
        lacks = self._lacks(sequence, sequence.reached + count)
        return lacks + self._copies(sequence) if sequence.shares_tail else lacks

    def room(self, sequence: Sequence) -> int:
        """Tokens by which the sequence could grow with the blocks that are free now."""
        free = self.pool.free - self._copies(sequence)
        if free < 0:
            return 0
        return (len(sequence.table) + free) * BLOCK - sequence.reached

    def extend(self, sequence: Sequence, count: int) -> None:
        """Take blocks for `count` more tokens; there must be `room` for them.

        The first write to a block with another owner, or under a key, goes to a copy of it.
        """
        if sequence.shares_tail:
            self._part_tail(sequence)
        self._hold(sequence, sequence.reached + count)

    def _part_tail(self, sequence: Sequence) -> None:
        """Have the block that the next token goes to for the sequence alone."""
        table = sequence.table
        if self._copies(sequence):
            place = sequence.reached // BLOCK
            shared, table[place] = table[place], self.pool.take()
            self.moves.copy(shared, table[place], sequence.request)
            self.moves.give(shared)
        sequence.shares_tail = False

    def hold(self, request: Request) -> None:
        """Let a request that was admitted have the blocks that it holds from the start."""
        for sequence in request.open_sequences:
            self._hold(sequence, sequence.computed)

    def _lacks(self, sequence: Sequence, tokens: int) -> int:
        """Blocks to take so that a running sequence holds what it has to with so many tokens."""
        lacks = self.allocation.blocks(sequence, tokens) - len(sequence.table)
        return lacks if lacks > 0 else 0

    def _hold(self, sequence: Sequence, tokens: int) -> None:
        """Take what it lacks; it must be free."""
        lacks = self._lacks(sequence, tokens)
        if lacks:
            sequence.table.extend(self.pool.take_all(lacks))

    def _copies(self, sequence: Sequence) -> int:
        """1 if the block that the next token goes to must be copied before, else 0."""
        if not sequence.shares_tail:
            return 0
        place = sequence.reached // BLOCK
        if place >= len(sequence.table):
            return 0
        block = sequence.table[place]
        return int(self.moves.owners(block) > 1 or self.pool.key_of(block) is not None)

    # ---------------------------------------------------------------- sharing

    def found(self, sequence: Sequence) -> list[int]:
        """Cached blocks that a waiting sequence can begin with.

        The last known token is always left to compute, so that there are logits to sample from.
        """
        return self.pool.match(self._beginning(sequence))

    def keys(self, request: Request) -> list[bytes]:
        """The keys of the blocks that a waiting request could begin with, if they were cached."""
        return self._beginning(request.open_sequences[0])

    def _beginning(self, sequence: Sequence) -> list[bytes]:
        if not self.cache or sequence.request.unscored:
            return []
        chain = self._chain(sequence)
        if len(sequence.tokens) // BLOCK > len(chain.keys):
            chain.grow(sequence.tokens)
        return chain.keys[: (len(sequence.tokens) - 1) // BLOCK]

    def adopt(self, sequence: Sequence, blocks: list[int]) -> None:
        """Let a sequence without blocks begin with cached ones."""
        for block in blocks:
            self.pool.share(block)
        sequence.table.extend(blocks)
        sequence.begin_at(len(blocks) * BLOCK)
        sequence.published = len(blocks)

    def fork(self, sequence: Sequence, source: Sequence) -> None:
        """Let a sequence that has computed nothing take over its sibling's prompt.

        It shares the blocks, and the first write copies; or it has own ones and copies at once.
        The last known token is left to compute, so that there are logits to sample from.
        """
        tokens = self.fork_tokens(sequence)
        blocks = source.table[: blocks_for(tokens)]
        sequence.begin_at(tokens)
        if not self.allocation.shares:
            for theirs, own in zip(blocks, sequence.table, strict=False):
                self.moves.copy(theirs, own, sequence.request)
            return
        for block in blocks:
            self.pool.share(block)
        sequence.table.extend(blocks)
        sequence.published = min(source.published, tokens // BLOCK)
        sequence.shares_tail = source.shares_tail = True

    def branch(self, sequence: Sequence, source: Sequence) -> None:
        """Make a new sequence what another one is, sharing all its blocks; the first write copies.

        No step in flight may write to the source's blocks.
        """
        for block in source.table:
            self.pool.share(block)
        sequence.table.extend(source.table)
        sequence.tokens = source.tokens.copy()
        sequence.begin_at(source.computed)
        sequence.prefill_end = source.computed
        sequence.published = source.published
        if source.chain is not None:
            sequence.chain = source.chain.fork()
        sequence.shares_tail = source.shares_tail = True

    @staticmethod
    def fork_tokens(sequence: Sequence) -> int:
        """Tokens that a sequence can take over from a sibling."""
        return min(sequence.request.prompt_length, len(sequence.tokens) - 1)

    def begins_at(self, sequence: Sequence) -> int:
        """Tokens that a running prompt has computed, or will take over from a sibling."""
        if sequence.reached or sequence is sequence.request.open_sequences[0]:
            return sequence.reached
        return self.fork_tokens(sequence)

    def _forked(self, sequence: Sequence) -> int:
        """Full blocks that a sibling which has not started will not have to take."""
        return self.fork_tokens(sequence) // BLOCK if self.allocation.shares else 0

    def publish(self, sequence: Sequence) -> None:
        """Let the blocks that have been filled since be found by others. Their KV is written."""
        chain = self._chain(sequence)
        full = sequence.computed // BLOCK
        if full > len(chain.keys):
            chain.grow(sequence.tokens)
        table, keys, publish = sequence.table, chain.keys, self.pool.publish
        for place in range(sequence.published, full):
            publish(table[place], keys[place])
        sequence.published = full

    def _chain(self, sequence: Sequence) -> KeyChain:
        """The keys of the sequence's full blocks; those of the prompt may have come with it."""
        if sequence.chain is None:
            sequence.chain = self._outside.chain_of(sequence)
        return sequence.chain

    # ---------------------------------------------------------------- giving back

    def release(self, sequence: Sequence) -> None:
        """Take everything from a sequence, last block first, so that a prefix outlives its tail."""
        blocks = sequence.table[::-1]
        del sequence.table[:]
        if sequence.in_flight > 0:
            self.limbo.extend(blocks)
        else:
            self.moves.give_all(blocks)
        sequence.forget()

    def restart(self, sequence: Sequence) -> None:
        """Give up what a running sequence has computed, of which nothing is in flight."""
        self.release(sequence)
        self._hold(sequence, 0)

    def trim(self, sequence: Sequence) -> None:
        """Give back the blocks that it holds for tokens which came to nothing."""
        table = sequence.table
        while len(table) > self.allocation.blocks(sequence, sequence.computed):
            self.moves.give(table.pop())

    def give(self, blocks: list[int]) -> None:
        """Blocks of a step that has landed are free again."""
        if blocks:
            self.moves.give_all(blocks)
            blocks.clear()

    # ---------------------------------------------------------------- asking

    def private(self, request: Request) -> int:
        """Blocks of a request that nobody shares: what taking them from it would free."""
        references = self.pool.references
        if len(request.sequences) == 1:
            return sum(references(block) == 1 for block in request.sequences[0].table)
        own = Counter(block for sequence in request.sequences for block in sequence.table)
        return sum(references(block) == count for block, count in own.items())

    def wanted(self, request: Request) -> int:
        """Blocks that admission asks for: those of all known tokens, a shared prompt once.

        Beams that are still to come will each copy the tail of the one they continue.
        """
        sequences = request.open_sequences
        blocks = sum(self.allocation.blocks(s, len(s.tokens)) for s in sequences)
        to_come = request.rows - len(sequences)
        return blocks + to_come - sum(map(self._forked, sequences[1:]))

    def missing(self, sequence: Sequence) -> int:
        """Blocks that a running prompt still needs for the tokens it was admitted with."""
        missing = self._lacks(sequence, sequence.prefill_end)
        if sequence.reached or sequence is sequence.request.open_sequences[0]:
            return missing + self._copies(sequence)
        return missing - self._forked(sequence)

    def committed(self, prefilling: dict[Sequence, None]) -> int:
        """Blocks that running prompts still need."""
        return sum(map(self.missing, prefilling))
