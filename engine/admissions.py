"""The latest admissions: who was let in past whom, and how fast each queue moves.

Written once an admission, in constant time; read when somebody asks why a request waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator
from itertools import takewhile
from typing import NamedTuple

from engine.request import Request

Line = tuple[str, Hashable]
"""A queue that moves by itself: a class, which may be closed, and a flow."""


class Passage(NamedTuple):
    """One admission. number: how many there were before it. line: where the request waited.

    prompt: its length in tokens. again: it had run before. aside: requests that were passed
    because they did not fit. closed: classes that could have nobody admitted then.
    """

    number: int
    at: float
    request: int
    ticket: int
    line: Line
    prompt: int
    again: bool
    aside: tuple[int, ...]
    closed: frozenset[str]


class AdmissionBook:
    """The MOST latest admissions. order_since: the first under the order that holds now."""

    MOST = 4096

    def __init__(self) -> None:
        self.count = 0
        self.order_since = 0
        self._passages: deque[Passage] = deque(maxlen=self.MOST)

    def add(
        self,
        request: Request,
        at: float,
        line: Line,
        aside: tuple[int, ...],
        closed: frozenset[str],
    ) -> None:
        """A request is let in at an engine time."""
        again = request.preemptions > 0
        passage = Passage(
            self.count,
            at,
            request.id,
            request.ticket,
            line,
            request.prompt_length,
            again,
            aside,
            closed,
        )
        self._passages.append(passage)
        self.count += 1

    def reorder(self) -> None:
        """Another policy is in charge: flows before and after have nothing in common."""
        self.order_since = self.count

    def since(self, number: int) -> Iterator[Passage]:
        """The admissions that are remembered from this number on, the latest first."""
        return takewhile(lambda passage: passage.number >= number, reversed(self._passages))

    def remembers(self, number: int) -> bool:
        """Whether all admissions from this number on are remembered."""
        return number >= self.count - len(self._passages)
