"""One request of a trace, whatever format the trace has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

LATEST_S: Final = 1e12
"""Beyond it the clock is too coarse for steps; the year 9999 is before it."""

MOST_TOKENS: Final = 10_000_000
"""Of a prompt or an output: more than any model's context."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request: seconds since the trace's first one, lengths in tokens, and whose it is.

    output_tokens: how many are generated, no more and no fewer. priority: lower is more urgent.
    Raises ValueError for what cannot be a request.
    """

    at: float
    prompt_tokens: int
    output_tokens: int
    tenant: str = "default"
    slo_class: str = "default"
    priority: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.at <= LATEST_S:
            raise ValueError(f"a request cannot arrive at {self.at} s")
        if self.prompt_tokens < 1 or self.output_tokens < 1:
            raise ValueError(
                f"a request of {self.prompt_tokens} prompt tokens and {self.output_tokens} output"
                " tokens: both must be at least 1"
            )
        if max(self.prompt_tokens, self.output_tokens) > MOST_TOKENS:
            raise ValueError(f"a request has at most {MOST_TOKENS:,} prompt and output tokens each")


def at_speed(arrivals: Iterable[Arrival], speed: float) -> Iterator[Arrival]:
    """The same requests `speed` (> 0) times as fast one after the other."""
    if not speed > 0:
        raise ValueError(f"a trace cannot be replayed at a speed of {speed}")
    return (replace(arrival, at=arrival.at / speed) for arrival in arrivals)


def from_first(arrivals: Sequence[Arrival]) -> list[Arrival]:
    """In order of arrival, the first one at 0, to the microsecond.

    Who arrived at the same time keeps the order.
    """
    ordered = sorted(arrivals, key=lambda arrival: arrival.at)
    return [replace(arrival, at=round(arrival.at - ordered[0].at, 6)) for arrival in ordered]
