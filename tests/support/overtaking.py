"""Who overtook whom, and what preemption cost, read from the decision log alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any


class Overtaking:
    """What a decision log says up to its end.

    lost: tokens that each request lost to preemption; displaced: requests that lost some to others
    that pushed them out, of which nothing is said. started: engine times of each one's
    admissions.
    """

    def __init__(self, entries: Iterable[tuple[Any, ...]]) -> None:
        self._tickets: dict[int, int] = {}
        self._waiting: dict[int, list[int]] = {}
        self._running: dict[int, int] = {}
        self.lost: defaultdict[int, int] = defaultdict(int)
        self.started: defaultdict[int, list[float]] = defaultdict(list)
        self.displaced: set[int] = set()
        self._now = 0.0
        for entry in entries:
            self.read(*entry)

    def read(self, kind: str, *values: Any) -> None:
        """The next entry."""
        match kind:
            case "step":
                self._now = values[1]
            case "arrive":
                self._tickets[values[0]] = values[1]
                self._waiting[values[0]] = []
            case "admit":
                self._admit(values[0])
            case "preempt":
                self._waiting[values[0]] = []
                self.lost[values[0]] += values[1]
            case "displace":
                self._waiting[values[0]] = []
                self.displaced.add(values[0])

    def _admit(self, request: int) -> None:
        del self._waiting[request]
        self.started[request].append(self._now)
        for other, overtakers in self._waiting.items():
            if self._tickets[other] < self._tickets[request]:
                overtakers.append(request)

    def overtakers(self, request: int) -> list[int]:
        """Younger requests that were admitted since this one began to wait, in that order."""
        return self._waiting[request]
