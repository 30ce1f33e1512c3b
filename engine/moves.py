"""Block moves of the step being planned, which it does before it writes anything."""

from __future__ import annotations

from dataclasses import dataclass

from engine.blocks import BlockPool
from engine.request import Request


@dataclass(frozen=True, slots=True)
class Launched:
    """The moves of a launched step, as (source, destination).

    requests: whose KV depends on them. If the step comes to nothing they start again.
    """

    copies: tuple[tuple[int, int], ...]
    requests: tuple[Request, ...]


class Moves:
    """What the next step moves before it writes.

    Moves are kept by destination, and a destination that is given back takes its move with it. A
    source is held until the step is launched: who took it in the same plan could overwrite it
    before it is read. A plan that launches nothing leaves its moves to the next one.
    """

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._copies: dict[int, int] = {}
        self._requests: dict[Request, None] = {}

    def copy(self, source: int, destination: int, request: Request) -> None:
        """Copy a block for a request, or what is to be copied there itself."""
        source = self._copies.get(source, source)
        self._pool.share(source)
        self._copies[destination] = source
        self._requests[request] = None

    def owners(self, block: int) -> int:
        """Who owns a block, apart from copies that read it before the step writes."""
        return self._pool.references(block) - sum(s == block for s in self._copies.values())

    def give(self, block: int) -> None:
        """Give a block back to the pool; after the last owner it needs no content."""
        self._pool.give(block)
        if self._copies and not self._pool.references(block):
            source = self._copies.pop(block, None)
            if source is not None:
                self.give(source)

    def launch(self) -> Launched:
        """Hand all moves to a step; what they read serves others from the next plan on."""
        copies, requests = self._copies, self._requests
        self._copies, self._requests = {}, {}
        for source in copies.values():
            self._pool.give(source)
        moves = tuple((source, destination) for destination, source in copies.items())
        return Launched(moves, tuple(requests))

    def held(self) -> list[int]:
        """The blocks that are held for a move to read."""
        return list(self._copies.values())
