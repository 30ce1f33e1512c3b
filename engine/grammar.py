"""The seam behind which a grammar says which tokens may come next.

The engine knows token ids only. Who makes a grammar (`app.structured`) knows what it means; here it
gives each sequence a matcher, tells it which tokens have landed, and asks for masks:

    launch    prepare(matchers) ─▶ wait()     computed while the forward pass runs
    sample    under the mask; who has none yet sits this one out
    land      accept(token), and each token that is forced() after it;
              over: the sequence ends; fault: its request fails

A sequence with a grammar is not planned while a token of it is in flight: its mask depends on that
token. So a matcher has always accepted exactly the known tokens that were generated, also after a
preemption or a fault in a step, and nothing is ever taken back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

Mask: TypeAlias = npt.NDArray[np.uint32] | npt.NDArray[np.int32]
"""One bit a token, set if it may be sampled, packed into 32-bit words (token i is bit i % 32 of
word i // 32, least significant first, as llguidance packs them); tokens beyond the last word may
not."""


class Late(Enum):
    """What stands for a mask that is not there yet."""

    LATE = "late"


LATE: Final = Late.LATE

Masks: TypeAlias = Sequence[Mask | Late | None]
"""None allows all."""


class Matcher(Protocol):
    """How far one sequence has come in its grammar. Called from the engine thread only."""

    @property
    def over(self) -> bool:
        """Whether what was accepted is complete and nothing can follow."""
        ...

    @property
    def fault(self) -> str:
        """Why the sequence cannot go on, in words a client may read; empty if it can."""
        ...

    def accept(self, token: int) -> None:
        """Take in the next token of the sequence. One that is not allowed is a fault."""
        ...

    def forced(self) -> Sequence[int]:
        """The tokens that come next because the grammar leaves no choice, in order.

        Nothing is taken in by asking. Masks allow nothing else at these places. None is always a
        right answer; it only takes longer.
        """
        ...


class Grammar(Protocol):
    """A grammar that sequences are held to; shared by all who have the same."""

    def matcher(self) -> Matcher:
        """A matcher at the start. Called from the engine thread; quick."""
        ...

    def prepare(self, matchers: Sequence[Matcher]) -> Callable[[], Masks]:
        """Begin to compute the mask of each matcher, and return at once.

        They may be of different grammars with the same maker. What is returned waits for the masks;
        until it has, nobody touches the matchers. A mask that cannot be had is None, and makes its
        matcher faulty; a mask allows at least one token.

        The step goes on when they have been waited for, and so does everybody in it: what takes
        longer than the others can be asked to wait is LATE. Its matcher is not touched either, and
        it is prepared again in a later step; one that never comes is to be made faulty instead.
        """
        ...


def allows(mask: Mask, token: int) -> bool:
    """Whether a mask lets a token through."""
    word = token // 32
    return word < len(mask) and bool(int(mask[word]) >> token % 32 & 1)


def first_allowed(mask: Mask) -> int:
    """The smallest token that a mask lets through. Raises ValueError if there is none."""
    bits = np.unpackbits(np.ascontiguousarray(mask).view(np.uint8), bitorder="little")
    first = int(bits.argmax())
    if not bits[first]:
        raise ValueError("the mask allows no token")
    return first
