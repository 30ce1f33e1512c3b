"""How long who comes now would wait for a first token, from how fast the others got theirs.

    work    of a request: tokens of its prompt, and of as many answers as it wants
    ahead   the work of who waits now
    pace    seconds that a unit of work took of late: the time during which somebody waited, over
            the work that got its first token meanwhile; as if one more of them got its own now
    wait    (ahead + own) · pace

Only time during which somebody waits counts, so a quiet hour changes nothing, and a stall makes
the estimate longer while it lasts. Each start weighs KEEP times the next one: the estimate follows
in about thirty starts, however fast they come. While nothing is known, nothing takes long.
"""

from __future__ import annotations

from typing import Final

KEEP: Final = 31 / 32
"""What the past counts for after each start."""


class Pace:
    """Work that waits, and how fast it gets its turn. Times are of any one clock, in seconds."""

    __slots__ = ("_ahead", "_busy", "_marked", "_pending", "_started", "_starts", "_waiting")

    def __init__(self) -> None:
        self._waiting = 0
        self._ahead = 0.0
        self._starts = 0.0
        self._started = 0.0
        self._busy = 0.0
        self._pending = 0.0
        """Seconds during which somebody waited since the last start, until `_marked`."""
        self._marked = 0.0

    @property
    def waiting(self) -> int:
        """Requests without a first token."""
        return self._waiting

    def enter(self, work: float, now: float) -> None:
        """A request waits from now on."""
        self._mark(now)
        self._waiting += 1
        self._ahead += work

    def start(self, work: float, now: float) -> None:
        """A request that waited got its first token."""
        self.leave(work, now)
        self._starts = KEEP * self._starts + 1
        self._started = KEEP * self._started + work
        self._busy = KEEP * self._busy + self._pending
        self._pending = 0.0

    def leave(self, work: float, now: float) -> None:
        """A request waits no more, and will get no token."""
        self._mark(now)
        self._waiting -= 1
        self._ahead = self._ahead - work if self._waiting else 0.0

    def seconds(self, work: float, now: float) -> float:
        """Until a request that came now would have its first token."""
        ahead = self._ahead + work
        one_more = self._started / self._starts if self._starts else ahead / (self._waiting + 1)
        time = self._busy + self._pending + self._since_mark(now)
        return ahead * time / (self._started + one_more)

    def _since_mark(self, now: float) -> float:
        return now - self._marked if self._waiting else 0.0

    def _mark(self, now: float) -> None:
        self._pending += self._since_mark(now)
        self._marked = now
