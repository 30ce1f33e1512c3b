"""The head of a request, bounded while it is read: the parser itself would take any."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SLACK: Final = 2
"""Bytes that may come for each byte that a head may have: blanks and line ends count nowhere else,
and neither does what stands between the pieces of a body."""


@dataclass(frozen=True, slots=True)
class HeadLimits:
    """size: bytes of the target and of all fields. lines: header fields, trailers included."""

    size: int
    lines: int


class HeadTooLarge(Exception):
    """More of a head has come than may."""


class Head:
    """What has come of the head of the request that is being read."""

    def __init__(self, limits: HeadLimits) -> None:
        self._limits = limits
        self._arrived = 0
        self.begin()

    def begin(self) -> None:
        """Another request begins."""
        self._size = self._lines = 0
        self.complete = False
        self.too_large = False

    def add(self, target: bytes) -> None:
        """Count a piece of the request's target. Raises HeadTooLarge."""
        self._size += len(target)
        self._check()

    def add_field(self, name: bytes, value: bytes) -> None:
        """Count a header field, or a trailer. Raises HeadTooLarge."""
        self._size += len(name) + len(value)
        self._lines += 1
        self._check()

    def arrived(self, size: int) -> None:
        """So many bytes have come, of whatever."""
        self._arrived += size

    def useful(self) -> None:
        """What has come so far was a whole head, or some of a body."""
        self._arrived = 0

    @property
    def overlong(self) -> bool:
        """Whether a line comes to no end; the parser keeps all of it."""
        self.too_large = self.too_large or self._arrived > SLACK * self._limits.size
        return self.too_large

    def _check(self) -> None:
        if self._size > self._limits.size or self._lines > self._limits.lines:
            self.too_large = True
            raise HeadTooLarge
