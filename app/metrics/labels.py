"""Label values: names of the configuration only, and only so many of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Final

from app.config.schema import DEFAULT

OTHER: Final = "other"
"""Stands for every name that has no series of its own."""

Names = Callable[[], Collection[str]]
"""Tells the names that are configured now; a reload may change them."""


class Label:
    """Turns names into label values.

    A name gets a series of its own if the configuration has it, as long as there are fewer than
    `most`; those that have one keep it. So there are at most `most` + 1 values, whatever clients
    send, policies return, or reloads bring.
    """

    def __init__(self, names: Names, most: int) -> None:
        self._names = names
        self._most = most
        self._known = {DEFAULT}

    def of(self, name: str) -> str:
        """The label value that stands for `name`."""
        if name in self._known:
            return name
        if name in self._names() and len(self._known) < self._most:
            self._known.add(name)
            return name
        return OTHER

    def sums(self, counts: Mapping[str, int]) -> dict[str, int]:
        """Counts by name as counts by label value; all that are configured are there."""
        summed: Counter[str] = Counter(dict.fromkeys(sorted(map(self.of, self.configured)), 0))
        for name, count in counts.items():
            summed[self.of(name)] += count
        return dict(summed)

    def longest(self, seconds: Mapping[str, float]) -> dict[str, float]:
        """Times by name as times by label value, of several the longest; all that are configured
        are there."""
        by_label = dict.fromkeys(sorted(map(self.of, self.configured)), 0.0)
        for name, time in seconds.items():
            label = self.of(name)
            by_label[label] = max(by_label.get(label, 0.0), time)
        return by_label

    @property
    def configured(self) -> Collection[str]:
        """The names of the configuration, the default among them."""
        return {DEFAULT, *self._names()}
