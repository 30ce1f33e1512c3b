"""The KV pool as a picture in text: a grid of blocks, who owns them, and a line of totals.

a    a block of the request that the legend calls a
A    the same, shared by several sequences
~    cached: nobody owns it, and its content can still be found
.    free
?    owned by somebody whom the legend does not name
"""

from __future__ import annotations

import string
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

FREE: Final = "."
CACHED: Final = "~"
UNNAMED: Final = "?"
LETTERS: Final = string.ascii_lowercase

MOST_LINES: Final = 24
"""Lines of the grid; in a pool with more blocks a character stands for several."""

_HUES: Final = ("red", "green", "yellow", "blue", "magenta", "cyan")
_COLOURS: Final = (*_HUES, *(f"bright_{hue}" for hue in _HUES))
_GROUP: Final = 8
"""A line has a multiple of so many blocks, so that places can be told."""


@dataclass(frozen=True, slots=True)
class PoolPicture:
    """Renders the document of GET /admin/blocks, as wide as the console is.

    Rendering raises LookupError, TypeError or ValueError if the document is something else.
    """

    document: Mapping[str, Any]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        letters = self._letters()
        yield from self._grid(letters, options.max_width)
        yield ""
        if letters:
            yield self._legend(letters)
            yield ""
        # A terminal breaks it where it must; in a pipe it is one line, for grep.
        in_pipe = not console.is_terminal
        yield Text(self._totals(), no_wrap=in_pipe, overflow="ignore" if in_pipe else None)

    def _letters(self) -> dict[int, str]:
        """Letters of the requests that own blocks, the oldest first, as far as letters go."""
        owners = [r["id"] for r in self.document["requests"] if sum(r["blocks"])]
        return dict(zip(owners, LETTERS, strict=False))

    # ---------------------------------------------------------------- the grid

    def _grid(self, letters: Mapping[int, str], width: int) -> Iterator[Text]:
        marks = [_mark(block, letters) for block in self.document["blocks"]]
        margin = len(str(len(marks))) + 2
        columns = max(_GROUP, (width - margin) // _GROUP * _GROUP)
        scale = -(-len(marks) // (columns * MOST_LINES))
        if scale > 1:
            yield Text(f"each character stands for {scale} blocks: what most of them are\n")
        shown = [_most(marks[i : i + scale]) for i in range(0, len(marks), scale)]
        for start in range(0, len(shown), columns):
            line = Text(f"{start * scale:>{margin - 2}}  ", style="dim")
            for mark, alike in groupby(shown[start : start + columns]):
                line.append("".join(alike), style=_style(mark))
            yield line

    # ---------------------------------------------------------------- the words

    def _legend(self, letters: Mapping[int, str]) -> Table:
        table = Table(box=None, pad_edge=False, show_edge=False)
        table.add_column("", no_wrap=True)
        table.add_column("request")  # the one that is cut where there is no room for all
        for heading in ("tenant", "class", "phase"):
            table.add_column(heading, no_wrap=True)
        for heading in ("prompt", "answer", "sequences", "blocks"):
            table.add_column(heading, justify="right", no_wrap=True)
        unnamed = 0
        for request in self.document["requests"]:
            letter = letters.get(request["id"])
            if letter is not None:
                table.add_row(Text(letter, style=_style(letter)), *_described(request))
            unnamed += letter is None and sum(request["blocks"]) > 0
        if unnamed:
            table.add_row(UNNAMED, f"{unnamed} more")
        return table

    def _totals(self) -> str:
        document = self.document
        host = document["host"]
        offloaded = f", {host['total'] - host['free']:,} of {host['total']:,} on the host"
        return (
            f"{document['total']:,} blocks: {document['owned']:,} owned, "
            f"{document['shared']:,} shared, {document['cached']:,} cached {CACHED}, "
            f"{document['free']:,} free {FREE}{offloaded if host['total'] else ''}; "
            f"{document['running']:,} running, {document['waiting']:,} waiting"
        )


def _mark(block: Mapping[str, Any], letters: Mapping[int, str]) -> str:
    """One character for one block."""
    if block["state"] == "free":
        return FREE
    if block["state"] == "cached":
        return CACHED
    named = [letters[request] for request, _ in block["sequences"] if request in letters]
    letter = named[0] if named else UNNAMED
    return letter.upper() if block["owners"] > 1 else letter


def _most(marks: Sequence[str]) -> str:
    """The mark that most of them are; the first of equals."""
    return marks[0] if len(marks) == 1 else Counter(marks).most_common(1)[0][0]


def _style(mark: str) -> str:
    if mark == FREE:
        return "dim"
    place = LETTERS.find(mark.lower())
    colour = "white" if place < 0 else _COLOURS[place % len(_COLOURS)]
    return f"bold {colour} reverse" if mark.isupper() else colour


def _described(request: Mapping[str, Any]) -> list[Text]:
    """The cells of a request: by the name that its client gave it, or else the reply's."""
    name = request["request_id"] or request["reply_id"] or f"request {request['id']}"
    words = [request["tenant"], request["class"], request["phase"]]
    numbers = (
        request["prompt_tokens"],
        request["generated_tokens"],
        len(request["blocks"]),
        sum(request["blocks"]),
    )
    return [
        Text(name, no_wrap=True, overflow="ellipsis"),
        *(Text(str(word)) for word in words),
        *(Text(f"{number:,}") for number in numbers),
    ]
