"""Other traces like a given one: its requests in blocks, drawn anew.

A seed is a trace made of blocks of consecutive requests, each with the gap before it, its lengths,
its tenant and its class, so that bursts and lulls stay what they are. A block is longer than the
longest busy period, the longest time without a moment at which the engine was idle: what happens in
one block hardly depends on the block before, as in the trace.

    trace      a b c d e f g h i j k l           blocks of 4, from anywhere, past the end to the
    a seed     f g h i|k l a b|d e f g           beginning

The circular block bootstrap: D. N. Politis, J. P. Romano, in Exploring the Limits of Bootstrap,
Wiley 1992. The seeds are traces like this one; another day's traffic may be unlike it.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from engine.simulation import Record
from loadtest.ab.prefixes import Prefixes
from loadtest.traces import Arrival

FEWEST_BLOCKS: Final = 8
"""Of a seed: fewer would be the trace itself over and over, begun elsewhere."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """How a trace is cut.

    requests: of a block. busy_s: the longest busy period. cut: whether blocks are shorter than it,
    because there would be fewer than FEWEST_BLOCKS; seeds then differ less than days would.
    """

    requests: int
    busy_s: float
    cut: bool


def longest_busy_period(records: Iterable[Record]) -> float:
    """Seconds of a run without a moment at which nobody waited or ran. In order of arrival."""
    longest = begin = end = 0.0
    for record in records:
        if not record.token_times:
            continue
        if record.arrival.at > end:
            begin = record.arrival.at
        end = max(end, record.token_times[-1])
        longest = max(longest, end - begin)
    return longest


def blocks_for(arrivals: Sequence[Arrival], busy_s: float) -> Blocks:
    """Blocks that are longer than a busy period, wherever they begin."""
    most = max(1, len(arrivals) // FEWEST_BLOCKS)
    wanted = _most_within(arrivals, busy_s) + 1
    return Blocks(min(wanted, most), busy_s, cut=wanted > most)


def _most_within(arrivals: Sequence[Arrival], seconds: float) -> int:
    """Most requests that arrive in any `seconds`, both ends included."""
    most = first = 0
    for last, arrival in enumerate(arrivals):
        while arrivals[first].at < arrival.at - seconds:
            first += 1
        most = max(most, last - first + 1)
    return most


def resample(arrivals: Sequence[Arrival], block: int, seed: int) -> list[Arrival]:
    """As many requests in blocks of `block`, drawn with replacement; the first one at 0.

    The same seed gives the same requests, whichever arm they are for. A request that is drawn twice
    is two requests: `Prefixes` says what their prompts have in common.
    """
    chance = random.Random(f"blocks {seed}")
    count, gaps, prefixes = len(arrivals), _gaps(arrivals), Prefixes(arrivals, block)
    drawn: list[Arrival] = []
    now = 0.0
    while len(drawn) < count:
        begin, number = chance.randrange(count), prefixes.next_block()
        for i in range(begin, begin + min(block, count - len(drawn))):
            now += gaps[i % count] if drawn else 0.0
            arrival = arrivals[i % count]
            drawn.append(replace(arrival, at=now, prefix=prefixes.of(arrival, number)))
    return drawn


def _gaps(arrivals: Sequence[Arrival]) -> list[float]:
    """Seconds before each request; before the first, where the end meets it, the mean of all."""
    between = [b.at - a.at for a, b in pairwise(arrivals)]
    return [sum(between) / max(1, len(between)), *between]
