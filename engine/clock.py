"""Time is an argument: the loop is given one of these clocks."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Seconds since an arbitrary start; never goes back."""
        ...


class MonotonicClock:
    """Real time."""

    def now(self) -> float:
        return time.monotonic()


class VirtualClock:
    """Time that passes only when somebody advances it."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start

    def now(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        """Let `seconds` >= 0 pass."""
        if seconds < 0:
            raise ValueError(f"time cannot go back by {-seconds} s")
        self._now += seconds

    def advance_to(self, moment: float) -> None:
        """Let time pass until exactly `moment`; nothing happens if that is over."""
        self._now = max(self._now, moment)
