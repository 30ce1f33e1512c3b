"""pydantic's validation errors in the words of somebody who writes YAML."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final

from app.problems import nearest

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_KINDS: Final = {
    "int_type": "an integer",
    "float_type": "a number",
    "string_type": "a string",
    "bool_type": "true or false",
    "finite_number": "a finite number",
}
_BOUNDS: Final = {
    "greater_than_equal": ("at least", "ge"),
    "greater_than": ("more than", "gt"),
    "less_than_equal": ("at most", "le"),
    "less_than": ("less than", "lt"),
}


_CREDENTIALS: Final = re.compile(r"://[^/\s]*@")

HIDDEN: Final = object()
"""Stands for a value that no message may show."""


def show(value: object) -> str:
    """A value as YAML shows it, shortened: null, true, "16", a mapping. Of a URL no credentials."""
    if value is HIDDEN:
        return "a value that is not shown"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    text = json.dumps(value, ensure_ascii=False, default=repr)
    text = _CREDENTIALS.sub("://…@", text)
    return text if len(text) <= 60 else f"{text[:57]}..."


def explain(detail: ErrorDetails) -> str:
    """Say what was expected, what was found, and what was probably meant."""
    kind, value, context = detail["type"], detail["input"], detail.get("ctx", {})
    if kind in _KINDS:
        return f"expected {_KINDS[kind]}, got {show(value)}{_hint(kind, value)}"
    if kind in _BOUNDS:
        words, bound = _BOUNDS[kind]
        return f"must be {words} {context[bound]:.15g}, got {show(value)}"
    if kind == "string_too_short":
        return "must not be empty"
    if kind == "literal_error":
        return f"expected {_choices(str(context['expected']), value)}"
    if kind == "value_error":
        return f"{context['error']}; got {show(value)}"
    return f"{detail['msg'][:1].lower()}{detail['msg'][1:]}; got {show(value)}"


def _choices(expected: str, value: object) -> str:
    """pydantic's "'a', 'b' or 'c'" without the quotes, with what was found."""
    choices = expected.replace("'", "")
    names = choices.replace(" or ", ", ").split(", ")
    match = nearest(value, names) if isinstance(value, str) else None
    meant = f"; did you mean {match}?" if match else ""
    return f"{choices}; got {show(value)}{meant}"


def _hint(kind: str, value: object) -> str:
    if kind == "int_type" and isinstance(value, float) and value.is_integer():
        return f"; write {int(value)}"
    if kind in ("int_type", "float_type") and isinstance(value, str):
        return "; drop the quotes" if value.replace(".", "", 1).isdecimal() else ""
    if kind == "string_type" and value is HIDDEN:
        return "; write it with quotes"
    if kind == "string_type" and isinstance(value, bool | int | float):
        return f'; write "{show(value)}" with the quotes'
    return ""
