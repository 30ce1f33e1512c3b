"""Calls of tools, read from the text of an answer while it comes."""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass
from typing import Final

from app.tools.toolbox import CLOSING, OPENING

HEAD: Final = re.compile(r'\s*\{"name": "([^"]*)", "arguments": ')
LONGEST_HEAD: Final = 256
"""Characters within which a call has its name; else it was no call."""

END: Final = "}\n" + CLOSING
"""What ends the arguments. Nothing in JSON looks like it: a string has no line break."""


@dataclass(frozen=True, slots=True)
class CallDelta:
    """What a piece adds to a call. name and id: with the first piece of each."""

    index: int
    arguments: str = ""
    name: str | None = None
    id: str | None = None


@dataclass(frozen=True, slots=True)
class Said:
    """What a piece of an answer says: texts, and what is added to calls, in order."""

    parts: tuple[str | CallDelta, ...]

    @property
    def text(self) -> str:
        """All of its text."""
        return "".join(part for part in self.parts if isinstance(part, str))

    @property
    def calls(self) -> tuple[CallDelta, ...]:
        """All that it adds to calls."""
        return tuple(part for part in self.parts if isinstance(part, CallDelta))


class CallReader:
    """Reads one answer. Text that may become a tag is held back until it cannot."""

    def __init__(self) -> None:
        self.calls = 0
        self._held = ""
        self._state = "text"  # or "head", or "arguments"
        self._parts: list[str | CallDelta] = []

    @property
    def within(self) -> bool:
        """Whether a call has begun that is not closed."""
        return self._state == "arguments"

    def feed(self, text: str, last: bool = False) -> Said:
        """Read on. last: nothing follows, so that nothing is held back."""
        self._held += text
        while self._advance():
            pass
        if last:
            self._flush()
        said = Said(tuple(self._parts))
        self._parts = []
        return said

    def _advance(self) -> bool:
        """Read up to the next boundary. False if it has not come yet."""
        if self._state == "head":
            return self._begin()
        text = self._state == "text"
        boundary = OPENING if text else END
        before, found, behind = self._held.partition(boundary)
        if found:
            self._emit(before)
            self._held, self._state = behind, "head" if text else "text"
            return True
        kept = _overlap(self._held, boundary)
        self._emit(self._held[: len(self._held) - kept])
        self._held = self._held[len(self._held) - kept :]
        return False

    def _begin(self) -> bool:
        head = HEAD.match(self._held)
        if head is None:
            if len(self._held) > LONGEST_HEAD:
                self._state = "text"
                self._emit(OPENING)
            return self._state == "text"
        call = f"call_{uuid.uuid4().hex[:24]}"
        self._parts.append(CallDelta(self.calls, name=head[1], id=call))
        self.calls += 1
        self._held, self._state = self._held[head.end() :], "arguments"
        return True

    def _emit(self, text: str) -> None:
        """Say text, or arguments. Blanks between two calls, or behind the last, say nothing."""
        if self._state == "arguments" and text:
            self._parts.append(CallDelta(self.calls - 1, text))
        elif self._state == "text" and text and (not self.calls or text.strip()):
            self._parts.append(text)

    def _flush(self) -> None:
        """Say what was held back: nothing follows. A call without a name is none."""
        if self._state != "head":
            self._emit(self._held)
        self._held = ""


def _overlap(text: str, boundary: str) -> int:
    """How many characters at the end of the text may be the beginning of the boundary."""
    most = min(len(text), len(boundary) - 1)
    return next((n for n in range(most, 0, -1) if text.endswith(boundary[:n])), 0)
