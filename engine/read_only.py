"""What policies are shown of the engine cannot be written to, and every attempt is reported."""

from __future__ import annotations

from collections.abc import Callable

OnWrite = Callable[[str], None]
"""Told the name of the attribute that somebody tried to write."""


def unheard(name: str) -> None:
    """Tell nobody."""


class ReadOnly:
    """A view: to write or delete an attribute raises AttributeError, after `_on_write` was told.

    That holds for whoever means well. Python hides nothing from those who reach into private
    attributes; `Scheduler.check` finds what they break.
    """

    __slots__ = ("_on_write",)

    _on_write: OnWrite

    def __setattr__(self, name: str, value: object) -> None:
        self._refuse(name)

    def __delattr__(self, name: str) -> None:
        self._refuse(name)

    def _refuse(self, name: str) -> None:
        self._on_write(name)
        raise AttributeError(f"{name} belongs to a view, which is read-only")
