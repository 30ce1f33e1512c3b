"""Which requests are offered, and how fast."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.problems import BadConfiguration, Problem
from engine.simulation.arrival import Arrival
from loadtest.traces.reader import read_trace
from loadtest.traces.timing import at_rate, at_speed, drawn, spread


@dataclass(frozen=True, slots=True)
class Offer:
    """A trace as it is replayed.

    speed: how many times as fast. rate: requests a second, in place of a speed. burstiness: draws
    the arrivals anew (see `drawn`); None keeps the trace's, except of lists of lengths, which have
    none. even: spreads those that arrive at one time (see `spread`).
    """

    path: Path
    speed: float = 1.0
    rate: float | None = None
    burstiness: float | None = None
    even: bool = False

    def arrivals(self, seed: int = 0) -> list[Arrival]:
        """The requests; seed: of drawn arrivals. Raises ConfigurationError that names the option
        or the file."""
        self._check()
        trace = read_trace(self.path)
        if not trace.timed and self.rate is None:
            raise _refused("--rate", f"{self.path.name} has lengths only: say how many a second")
        try:
            return self._placed(trace.arrivals, trace.timed, seed)
        except ValueError as error:
            raise _refused("--speed" if self.rate is None else "--rate", str(error)) from None

    def _check(self) -> None:
        if self.rate is not None and self.speed != 1.0:
            raise _refused("--speed", "the arrivals have either a speed or a --rate")
        if self.burstiness is not None and self.rate is None:
            raise _refused("--burstiness", "arrivals are drawn with a --rate")

    def _placed(self, arrivals: list[Arrival], timed: bool, seed: int) -> list[Arrival]:
        if self.even:
            arrivals = spread(arrivals)
        if self.rate is None:
            return list(at_speed(arrivals, self.speed))
        if timed and self.burstiness is None:
            return at_rate(arrivals, self.rate)
        return drawn(arrivals, self.rate, self.burstiness or 1.0, seed)

    def facts(self) -> dict[str, Any]:
        """For JSON: what was offered. A rate or burstiness of null is the trace's."""
        return {
            "trace": self.path.name,
            "speed": self.speed,
            "rate": self.rate,
            "burstiness": self.burstiness,
            "even": self.even,
        }


def in_words(facts: Mapping[str, Any]) -> str:
    """The `facts` of an offer for people."""
    parts = [str(facts["trace"])]
    if facts["rate"] is not None:
        parts.append(f"at {facts['rate']:g} requests/s")
    elif not math.isclose(facts["speed"], 1.0):
        parts.append(f"at {facts['speed']:g} times its speed")
    if facts["burstiness"] is not None:
        parts.append(f"burstiness {facts['burstiness']:g}")
    return " ".join(parts)


def _refused(option: str, message: str) -> BadConfiguration:
    return BadConfiguration(Problem(option, message))
