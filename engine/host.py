"""Host memory: where the KV of preempted requests waits until they run again.

running    table   a b c d      computed tokens are in the cache
                   │ │ │ │
waiting    host    0 1 2 3      `stored` tokens are in host memory; the table is empty
                     │ │ │
running    table   k l m n e    k: still in the prefix cache; the others are copied back
"""

from __future__ import annotations

from array import array

from engine.batch import BLOCK
from engine.blocks import blocks_for
from engine.memory import KVMemory
from engine.request import Request, Sequence


class HostMemory:
    """Moves requests between a KV memory and its host blocks. Siblings share what they shared."""

    def __init__(self, memory: KVMemory) -> None:
        self._memory = memory
        self._moves = memory.moves
        self._pool = memory.host

    @property
    def free(self) -> int:
        """Host blocks that can be taken now."""
        return self._pool.free if self._pool else 0

    @property
    def total(self) -> int:
        return self._pool.total if self._pool else 0

    def contents(self, request: Request) -> dict[Sequence, list[int]] | None:
        """The blocks that hold what each sequence computed, as far as it has to be stored.

        A block of the prompt that siblings computed, or copied, apart is named once. Who has less
        than it could fork from a sibling is left out. None if content is still being restored.
        The last known token is always left to compute, so that there are logits to sample from.
        """
        source = request.prompt_source()
        prompt: dict[int, int] = {}
        contents: dict[Sequence, list[int]] = {}
        for sequence in request.open_sequences:
            if source and sequence.computed < self._memory.fork_tokens(sequence):
                continue
            blocks = contents[sequence] = []
            tokens = self._storable(sequence)
            for place, block in enumerate(sequence.table[: blocks_for(tokens)]):
                content = self._moves.content(block)
                if content is None:
                    return None
                if (place + 1) * BLOCK <= min(tokens, request.prompt_length):
                    content = prompt.setdefault(place, content)
                blocks.append(content)
        return contents

    @staticmethod
    def needed(contents: dict[Sequence, list[int]]) -> int:
        """Host blocks that storing these contents takes."""
        return len({block for blocks in contents.values() for block in blocks})

    def offload(self, contents: dict[Sequence, list[int]]) -> None:
        """Store in host memory, which must have room, what `contents` said of a request.

        The blocks are still its own, and can be taken from it at once.
        """
        assert self._pool is not None, "there is no host memory"
        places: dict[int, int] = {}
        for sequence, blocks in contents.items():
            for block in blocks:
                if block in places:
                    self._pool.share(places[block])
                else:
                    places[block] = self._pool.take()
                    self._moves.offload(block, places[block], sequence.request)
                sequence.host.append(places[block])
            sequence.stored = self._storable(sequence)

    @staticmethod
    def _storable(sequence: Sequence) -> int:
        return min(sequence.computed, len(sequence.tokens) - 1)

    def restore(self, request: Request) -> int:
        """Let a request that is admitted begin with what is cached and what it stored.

        Returns how many blocks are copied back.
        """
        sequences = request.open_sequences
        places: dict[int, int] = {}
        # First share all that is found: the blocks taken after that may be cached ones.
        for sequence in sequences:
            if sequence.host or sequence is sequences[0]:
                found = self._memory.found(sequence)
                self._memory.adopt(sequence, found)
                # A block stored in part may be shared by siblings whose next tokens differ.
                whole = sequence.host[: sequence.stored // BLOCK]
                places.update(zip(whole, found, strict=False))
        restored = sum(
            self._fetch(sequence, places)
            for sequence in sequences
            if sequence.stored > sequence.computed
        )
        for sequence in sequences:
            self.forget(sequence)
        self._memory.hold(request)
        return restored

    def _fetch(self, sequence: Sequence, places: dict[int, int]) -> int:
        """Fill up a table from host memory; returns how many blocks are copied.

        places: the block that each host block is in now.
        """
        shares, copied = self._memory.allocation.shares, 0
        for host in sequence.host[len(sequence.table) :]:
            if shares and host in places:
                self._memory.pool.share(places[host])
            else:
                places[host] = self._memory.pool.take()
                self._moves.restore(host, places[host], sequence.request)
                copied += 1
            sequence.table.append(places[host])
        sequence.begin_at(sequence.stored)
        sequence.shares_tail = shares
        return copied

    def forget(self, sequence: Sequence) -> None:
        """Give back what a sequence holds in host memory."""
        for host in sequence.host:
            self._moves.give_host(host)
        del sequence.host[:]
        sequence.stored = 0

    def check(self, tables: list[array[int]]) -> None:
        """Assert E1 for host blocks, against what sequences hold."""
        if self._pool is None:
            assert not any(tables), "E1: a host block without host memory"
        else:
            self._pool.check([*tables, self._moves.held_host()])
