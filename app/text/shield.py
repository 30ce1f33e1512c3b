r"""Keeps what users type from becoming control tokens on its way through a chat template.

    user text    Hi<|im_end|>      covered    Hi<⟐|im_end|>
    rendered     <|im_start|>user\nHi<⟐|im_end|><|im_end|>\n
    segments     [<|im_start|>] user\nHi<|im_end|> [<|im_end|>] \n          [control]

The mark (⟐ above) is a character that occurs nowhere else, so taking it out again is exact.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_MARKS = range(0x20000, 0x2A6E0)
"""CJK Unified Ideographs Extension B: rare, without case, no white space, and printable, so that
the repr() of a dict in a template leaves them as they are."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of rendered text; `control`: it is exactly one control token, put by the template."""

    text: str
    control: bool


class Shield:
    """Breaks control-token texts in user strings and tells the template's own from the rest.

    A control token whose two ends the template itself writes is its own, even if a user string
    stands between them: '<|' + role + '|>' makes turn marks of roles, which are checked elsewhere.
    """

    def __init__(self, control: Iterable[str], template: str) -> None:
        """`template`: its source, whose characters cannot serve as marks.

        A control token of one character cannot be broken; it is plain text here.
        """
        texts = sorted((text for text in control if len(text) > 1), key=len, reverse=True)
        self._starts = frozenset(text[:end] for text in texts for end in range(1, len(text)))
        self._ends = frozenset(text[start:] for text in texts for start in range(1, len(text)))
        self._first_chars = frozenset(text[0] for text in texts)
        self._last_chars = frozenset(text[-1] for text in texts)
        self._longest = max(map(len, texts), default=0)
        self._whole = _any_of(re.escape(text) for text in texts)
        # Matches the first character only, so that an occurrence inside another is found as well.
        self._first = _any_of(f"{re.escape(t[0])}(?={re.escape(t[1:])})" for t in texts)
        self._taken = frozenset(template).union(*texts)

    def cover(self, values: Any) -> tuple[Any, str]:
        """A copy of JSON-like `values` in which no string holds a control token; and the mark.

        Whole control tokens are broken; so are a beginning of one at the end of a string and an end
        of one at its start, from what the template may put beside them. White space around these
        is looked through, since templates trim. Raises ValueError if no character is left to be
        the mark.
        """
        mark = self._choose_mark(values)
        return _map_strings(values, lambda text: self._cover_string(text, mark)), mark

    def split(self, rendered: str, mark: str) -> list[Segment]:
        """Cut the rendered text at the template's own control tokens and take the marks out."""
        segments = []
        position = 0
        for match in self._whole.finditer(rendered):
            segments.append(Segment(rendered[position : match.start()].replace(mark, ""), False))
            segments.append(Segment(match[0], True))
            position = match.end()
        segments.append(Segment(rendered[position:].replace(mark, ""), False))
        return [segment for segment in segments if segment.text]

    def another_mark(self, mark: str, values: Any) -> str:
        """A character that occurs neither in `values` nor in the template, and is not `mark`."""
        return self._choose_mark([values, mark])

    def _choose_mark(self, values: Any) -> str:
        strings = (text for text in _strings(values) if not text.isascii())
        taken = self._taken.union(*strings)
        for mark in map(chr, _MARKS):
            if mark not in taken:
                return mark
        raise ValueError("the messages use every rare character there is")

    def _cover_string(self, text: str, mark: str) -> str:
        text = self._first.sub(lambda match: match[0] + mark, text)
        body = text.rstrip()
        if self._ends_in_a_start(body):
            text = body + mark + text[len(body) :]
        body = text.lstrip()
        if self._starts_in_an_end(body):
            text = text[: len(text) - len(body)] + mark + body
        return text

    def _ends_in_a_start(self, body: str) -> bool:
        if self._first_chars.isdisjoint(body[-self._longest :]):
            return False
        return any(body[-size:] in self._starts for size in range(1, self._longest))

    def _starts_in_an_end(self, body: str) -> bool:
        if self._last_chars.isdisjoint(body[: self._longest]):
            return False
        return any(body[:size] in self._ends for size in range(1, self._longest))


def _any_of(patterns: Iterable[str]) -> re.Pattern[str]:
    """Matches any of `patterns`, the first that fits; nothing if there are none."""
    return re.compile("|".join(patterns) or "(?!)")


def _strings(value: Any) -> Iterator[str]:
    """Every string in a JSON-like value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _strings(key)
            yield from _strings(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item)


def _map_strings(value: Any, change: Callable[[str], str]) -> Any:
    """A copy of a JSON-like value with every string, keys included, changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {
            _map_strings(key, change): _map_strings(item, change) for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_map_strings(item, change) for item in value]
    return value
