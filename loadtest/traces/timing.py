"""When the requests of a trace arrive: as they did, faster, or drawn anew."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from engine.simulation.arrival import Arrival


def from_first(arrivals: Sequence[Arrival]) -> list[Arrival]:
    """In order of arrival, the first one at 0, to the microsecond.

    Who arrived at the same time keeps the order.
    """
    ordered = sorted(arrivals, key=lambda arrival: arrival.at)
    return [replace(arrival, at=round(arrival.at - ordered[0].at, 6)) for arrival in ordered]


def at_speed(arrivals: Iterable[Arrival], speed: float) -> Iterator[Arrival]:
    """The same requests `speed` (> 0) times as fast one after the other."""
    if not speed > 0:
        raise ValueError(f"a trace cannot be replayed at a speed of {speed}")
    return (replace(arrival, at=arrival.at / speed) for arrival in arrivals)


def rate_of(arrivals: Sequence[Arrival]) -> float:
    """Requests a second from the first to the last arrival; raises ValueError if all are one."""
    span = arrivals[-1].at - arrivals[0].at
    if span <= 0:
        raise ValueError("all of its requests arrive at once, so they have no rate")
    return (len(arrivals) - 1) / span


def at_rate(arrivals: Sequence[Arrival], rate: float) -> list[Arrival]:
    """The same requests so fast that `rate` (> 0) arrive in a second; gaps keep their pattern.

    Raises ValueError where all arrive at once.
    """
    return list(at_speed(arrivals, rate / rate_of(arrivals)))


def drawn(
    arrivals: Iterable[Arrival], rate: float, burstiness: float = 1.0, seed: int = 0
) -> list[Arrival]:
    """The same requests in the same order, at new times: `rate` in a second on average.

    Gaps are gamma distributed with the shape `burstiness`, as `vllm bench serve` has it: 1 is a
    Poisson process, less is burstier, and their coefficient of variation is its root's inverse.
    The first request arrives at 0.
    """
    chance = random.Random(f"arrivals {seed}")
    scale = 1 / (rate * burstiness)
    now, placed = 0.0, []
    for arrival in arrivals:
        placed.append(replace(arrival, at=now))
        now += chance.gammavariate(burstiness, scale)
    return placed


def spread(arrivals: Sequence[Arrival]) -> list[Arrival]:
    """Requests that arrive at one time, evenly from there to the next time that there is.

    For traces whose times were rounded. The last ones take the gap before them.
    """
    groups = [list(group) for _, group in itertools.groupby(arrivals, lambda each: each.at)]
    times = [group[0].at for group in groups]
    gaps = [after - before for before, after in itertools.pairwise(times)]
    gaps += gaps[-1:] or [0.0]
    return [
        replace(each, at=each.at + gap * place / len(group))
        for group, gap in zip(groups, gaps, strict=True)
        for place, each in enumerate(group)
    ]
