"""Shadows that could not be scored are left out for some windows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

LONGEST: Final = 16
"""Windows that a shadow is left out for, at most."""


@dataclass(slots=True)
class _Rest:
    why: str
    length: int
    left: int


class Rests:
    """Each time in a row a shadow is left out for twice as many windows.

    What does not come back takes all the time there is to say so, which the windows behind it would
    lack.
    """

    def __init__(self) -> None:
        self._of: dict[str, _Rest] = {}

    def awake(self, names: Iterable[str]) -> list[str]:
        """Those of them that are to be scored."""
        return [name for name in names if name not in self._of or not self._of[name].left]

    def told(self) -> dict[str, str]:
        """Why the others are not."""
        return {
            name: f"{rest.why}; left out for {rest.left} windows of traffic"
            for name, rest in self._of.items()
            if rest.left
        }

    def after(self, faults: Mapping[str, str | None]) -> None:
        """A window has been scored. faults: why those that were to be scored were not; None if
        they were."""
        for rest in self._of.values():
            rest.left = max(0, rest.left - 1)
        for name, why in faults.items():
            before = self._of.pop(name, None)
            if why is not None:
                length = 1 if before is None else min(LONGEST, 2 * before.length)
                self._of[name] = _Rest(why, length, length)
