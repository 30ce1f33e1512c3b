"""What prompts have in common when a trace is drawn anew.

A system prompt is in requests all over a trace, and so it is in all blocks of a seed. A
conversation is over within a block or so: drawn twice it is two conversations, and the second must
not find the first one's prompts in the cache. So a name keeps its meaning where its first and last
request are at least a block apart; where they are not, it has another in each block drawn. Of
conversations longer than a block that are drawn twice, hits are a little too many.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from engine.simulation.arrival import Prefix
from loadtest.traces import Arrival


class Prefixes:
    """The names of one seed's prompts. block: requests of a block."""

    def __init__(self, arrivals: Sequence[Arrival], block: int) -> None:
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for place, arrival in enumerate(arrivals):
            for name in _all(arrival.prefix):
                first.setdefault(name, place)
                last[name] = place
        self._lasting = {name for name in first if last[name] - first[name] >= block}
        self._stride = 1 + max(first, default=0)
        self._blocks = -1

    def next_block(self) -> int:
        """The number of another block."""
        self._blocks += 1
        return self._blocks

    def of(self, arrival: Arrival, block: int) -> Prefix | None:
        """The names of a request's prompt where it is drawn in this block."""
        if arrival.prefix is None:
            return None
        prefix, renamed = arrival.prefix, partial(self._renamed, block)
        names, answer = tuple(map(renamed, prefix.names)), tuple(map(renamed, prefix.answer))
        return replace(prefix, names=names, answer=answer)

    def _renamed(self, block: int, name: int) -> int:
        return name if name in self._lasting else name + block * self._stride


def _all(prefix: Prefix | None) -> tuple[int, ...]:
    """What a request leaves in the cache."""
    return () if prefix is None else (*prefix.names, *prefix.answer)
