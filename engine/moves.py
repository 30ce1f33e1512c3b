"""Block moves of the step being planned, which it does before it writes anything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from engine.blocks import BlockPool
from engine.request import Request

Pairs = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Launched:
    """The moves of a launched step, as (source, destination).

    requests: whose KV depends on them. If the step comes to nothing they start again.
    """

    offloads: Pairs
    restores: Pairs
    copies: Pairs
    requests: tuple[Request, ...]


NOTHING_MOVED: Final = Launched((), (), (), ())


class Moves:
    """What the next step moves before it writes: offloads, then restores, then copies.

        pool    a ─────copy────▶ b      c          d
                                        │ offload  ▲ restore
        host                            ▼ x        │ y

    Moves are kept by destination, and a destination that is given back takes its move with it.
    A copy holds the block and a restore the host block that it reads until the step is launched:
    who took them in the same plan could overwrite them before they are read. An offload holds
    nothing, because it comes first. A plan that launches nothing leaves its moves to the next one.
    """

    def __init__(self, pool: BlockPool, host: BlockPool | None = None) -> None:
        self._pool = pool
        self._host = host
        self._offloads: dict[int, int] = {}
        self._restores: dict[int, int] = {}
        self._copies: dict[int, int] = {}
        self._copied: Counter[int] = Counter()  # how many copies read each source
        self._requests: dict[Request, None] = {}

    def copy(self, source: int, destination: int, request: Request) -> None:
        """Copy a block for a request, or what is to be copied there itself."""
        source = self._copies.get(source, source)
        self._pool.share(source)
        self._copies[destination] = source
        self._copied[source] += 1
        self._requests[request] = None

    def offload(self, source: int, host: int, request: Request) -> None:
        """Move a block's content to host memory. `source` is one that `content` names."""
        self._offloads[host] = source
        self._requests[request] = None

    def restore(self, host: int, destination: int, request: Request) -> None:
        """Move content back from host memory."""
        assert self._host is not None, "what is restored was offloaded"
        self._host.share(host)
        self._restores[destination] = host
        self._requests[request] = None

    def content(self, block: int) -> int | None:
        """Where the content of a block is when the step begins; None if in host memory."""
        block = self._copies.get(block, block)
        return None if block in self._restores else block

    def owners(self, block: int) -> int:
        """Who owns a block, apart from copies that read it before the step writes."""
        return self._pool.references(block) - self._copied[block]

    def give(self, block: int) -> None:
        """Give a block back to the pool; after the last owner it needs no content."""
        self._pool.give(block)
        if (self._copies or self._restores) and not self._pool.references(block):
            source, host = self._copies.pop(block, None), self._restores.pop(block, None)
            if source is not None:
                self._copied[source] -= 1
                self.give(source)
            if host is not None:
                self.give_host(host)

    def give_all(self, blocks: Iterable[int]) -> None:
        """Give blocks back, one after the other."""
        if not (self._copies or self._restores):
            self._pool.give_all(blocks)
            return
        for block in blocks:
            self.give(block)

    def give_host(self, host: int) -> None:
        """Give a host block back; after the last owner it needs no content."""
        assert self._host is not None, "there is no host memory"
        self._host.give(host)
        if not self._host.references(host):
            self._offloads.pop(host, None)

    def launch(self) -> Launched:
        """Hand all moves to a step; what they read serves others from the next plan on."""
        if not self._requests:
            return NOTHING_MOVED
        offloads, restores, copies = self._offloads, self._restores, self._copies
        requests, self._requests = tuple(self._requests), {}
        self._offloads, self._restores, self._copies, self._copied = {}, {}, {}, Counter()
        for host in restores.values():
            self.give_host(host)
        for source in copies.values():
            self._pool.give(source)
        return Launched(_pairs(offloads), _pairs(restores), _pairs(copies), requests)

    @property
    def requests(self) -> tuple[Request, ...]:
        """Whose KV depends on the moves that no step has taken over."""
        return tuple(self._requests)

    def held(self) -> list[int]:
        """The blocks that are held for a copy to read."""
        return list(self._copies.values())

    def held_host(self) -> list[int]:
        """The host blocks that are held for a restore to read."""
        return list(self._restores.values())


def _pairs(by_destination: dict[int, int]) -> Pairs:
    return tuple((source, destination) for destination, source in by_destination.items())
