"""The numbers of a report's charts, in one JSON block of the page."""

from __future__ import annotations

from typing import Any, Final

import orjson

_UNSAFE: Final = {
    "<": "\\u003c",
    ">": "\\u003e",
    "&": "\\u0026",
    "\u2028": "\\u2028",
    "\u2029": "\\u2029",
}
"""What could end the block, or a line of a script, wherever it stands in a string."""


def as_script(name: str, value: Any) -> str:
    """A JSON value as a script element that no browser runs. NaN and infinities become null."""
    text = orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY).decode()
    for unsafe, escaped in _UNSAFE.items():
        text = text.replace(unsafe, escaped)
    return f'<script type="application/json" id="{name}">{text}</script>'


class DataBlock:
    """What is drawn on a page, in order of its figures."""

    def __init__(self) -> None:
        self._charts: list[Any] = []

    def add(self, chart: Any) -> int:
        """Take in what a chart is drawn from; returns its number on the page."""
        self._charts.append(chart)
        return len(self._charts) - 1

    def html(self) -> str:
        return as_script("charts", self._charts)
