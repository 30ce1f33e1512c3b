"""A noisy tenant beside quiet ones: bursts of long requests, and a trickle of short ones."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from loadtest.traces import Arrival

NOISY: Final = "noisy"
QUIET: Final = "quiet"


@dataclass(frozen=True, slots=True)
class Traffic:
    """Poisson arrivals of bursts, and of single requests.

    burst_every_s, burst: seconds between two bursts on average, and how many requests one has.
    single_every_s: the same of the quiet tenant's requests.
    """

    burst_every_s: float = 4.0
    burst: int = 8
    noisy_prompt: int = 160
    noisy_output: int = 64
    single_every_s: float = 0.6
    quiet_prompt: int = 48
    quiet_output: int = 16


USUAL: Final = Traffic()


def workload(seconds: float, seed: int, traffic: Traffic = USUAL) -> list[Arrival]:
    """What comes within so many seconds, in order."""
    chance = random.Random(f"noisy tenant {seed}")
    bursts = [
        Arrival(at, traffic.noisy_prompt, traffic.noisy_output, NOISY)
        for at in _poisson(chance, traffic.burst_every_s, seconds)
        for _ in range(traffic.burst)
    ]
    singles = [
        Arrival(at, traffic.quiet_prompt, traffic.quiet_output, QUIET)
        for at in _poisson(chance, traffic.single_every_s, seconds)
    ]
    return sorted([*bursts, *singles], key=lambda each: each.at)


def _poisson(chance: random.Random, every: float, until: float) -> Iterator[float]:
    at = chance.expovariate(1 / every)
    while at < until:
        yield at
        at += chance.expovariate(1 / every)
