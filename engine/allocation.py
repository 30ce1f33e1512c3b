"""How many blocks a sequence holds: as many as it has filled, or all that it may ever fill."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

from engine.blocks import blocks_for
from engine.request import Sequence


class Allocation(Protocol):
    """What a running sequence holds.

    shares: whether a block may have several owners: siblings, and requests that begin alike.
    """

    @property
    def shares(self) -> bool: ...

    def blocks(self, sequence: Sequence, tokens: int) -> int:
        """Blocks that a running sequence holds when `tokens` of it are or will be computed."""
        ...


class Paged:
    """A block is taken when the first token is written to it: at most 15 tokens lie waste."""

    shares = True

    def blocks(self, sequence: Sequence, tokens: int) -> int:
        return blocks_for(tokens)


class Reserve:
    """The blocks of the longest possible answer are held from admission on, each by one owner.

    As engines did before paging (Orca, OSDI 2022; its cost is what vLLM, SOSP 2023, set out from):
    nobody ever gives way so that another can grow, and what an answer does not use lies waste.
    Siblings copy the prompt of the first one.
    """

    shares = False

    def blocks(self, sequence: Sequence, tokens: int) -> int:
        return blocks_for(sequence.request.tokens_at_most)


PAGED: Final = Paged()
RESERVE: Final = Reserve()
ALLOCATIONS: Final[Mapping[str, Allocation]] = {"paged": PAGED, "reserve": RESERVE}
"""By the name that `engine.allocation` gives them."""
