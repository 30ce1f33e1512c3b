"""What no schema or grammar may be, because compiling it would take too long or too deep a stack.

The library bounds most of its work itself; these are the cases that it does not.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import orjson

MOST_DEPTH: Final = 48
"""Levels of a schema; each is two of the JSON that it is written in."""

MOST_PATTERN: Final = 8 * 2**10
"""Characters of a regular expression: what a longer one takes grows with their square."""

MOST_MEETING: Final = 8
"""Patterns that one string may have to match at once: what it takes to find out whether any string
does grows exponentially with their number, in time and in memory."""

MOST_GRAMMAR: Final = 16 * 2**10
"""Characters of a client's grammar, which may be regular expressions."""

MOST_STATES: Final = 10_000
"""States of an automaton that counts digits: the least common multiple of every `multipleOf`."""

DIRECTIVE: Final = re.compile(r"%\s*(json|llguidance|lark|regex)\b")
"""What a client's grammar cannot use: another grammar inside, which nobody has looked at."""


LITERAL: Final = re.compile(r'"(?:\\.|[^"\\\n])*"|/(?:\\.|[^/\\\n])+/')
"""A string or a regular expression of a grammar; neither goes beyond its line."""

IN_PLACE: Final = ("allOf", "anyOf", "oneOf")
"""Keywords whose schemas are of the same value as the one that they stand in."""

WHOLE: Final = re.compile(r"#(/(\$defs|definitions)/[^/]+)?")
"""References to something that is defined, and not to a part of it."""

ELSEWHERE: Final = ""
"""Where a value is that is not known to be a property of a certain name."""


class Unfit(Exception):
    """A grammar that nothing can be held to; the text completes "The schema …"."""


def check_schema(text: str) -> None:
    """Raises Unfit for a schema that is not to be compiled."""
    schema = orjson.loads(text)
    steps: list[Decimal] = []
    for depth, node in _nodes(schema):
        if depth > 2 * MOST_DEPTH:
            raise Unfit(f"has more than {MOST_DEPTH} levels")
        pattern = node.get("pattern")
        if isinstance(pattern, str):
            check_regex(pattern)
        step = node.get("multipleOf")
        if isinstance(step, int | float) and not isinstance(step, bool) and step > 0:
            steps.append(Decimal(str(step)))
    if _meeting(schema) > MOST_MEETING:
        raise Unfit(f"may hold one string to more than {MOST_MEETING} patterns at once")
    if _common_multiple(steps) > MOST_STATES:
        raise Unfit("has numbers in multipleOf whose common multiple is too large")


def check_regex(text: str) -> None:
    """Raises Unfit for a regular expression that is not to be compiled."""
    if len(text) > MOST_PATTERN:
        raise Unfit(f"has a pattern of more than {MOST_PATTERN} characters")


def check_grammar(text: str) -> None:
    """Raises Unfit for a client's grammar that is not to be compiled."""
    if text.lstrip().startswith("{"):  # the library's own notation: schemas nobody has looked at
        raise Unfit("is JSON, and not in the notation of Lark or GBNF")
    if len(text) > MOST_GRAMMAR:
        raise Unfit(f"has more than {MOST_GRAMMAR} characters")
    if LITERAL.sub("", text).count("&") >= MOST_MEETING:
        raise Unfit(f"has {MOST_MEETING} or more intersections (&)")
    if found := DIRECTIVE.search(text):
        raise Unfit(f"uses %{found[1]}, which is not supported")


def _nodes(schema: Any) -> Iterator[tuple[int, dict[str, Any]]]:
    """Every object in a JSON value, and how deep it lies."""
    left = [(0, schema)]
    while left:
        depth, value = left.pop()
        if isinstance(value, dict):
            yield depth, value
            left += ((depth + 1, each) for each in value.values())
        elif isinstance(value, list):
            left += ((depth + 1, each) for each in value)


def _meeting(schema: Any) -> int:
    """No fewer than the different patterns that can meet at one place of an answer.

    They can where the last step to that place is a property of the same name, and any of them with
    one that is reached otherwise: through items, or a reference.
    """
    patterns: defaultdict[str, set[str]] = defaultdict(set)
    whole = True
    left = [(ELSEWHERE, schema)]
    while left:
        name, value = left.pop()
        if isinstance(value, list):
            left += ((name, each) for each in value)
        if not isinstance(value, dict):
            continue
        for key, member in value.items():
            if key == "pattern" and isinstance(member, str):
                patterns[name].add(member)
            elif key in ("$ref", "$dynamicRef", "$recursiveRef"):
                whole = whole and isinstance(member, str) and bool(WHOLE.fullmatch(member))
            elif key in ("$id", "id") and isinstance(member, str) and value is not schema:
                whole = False  # "#" may stand for this one
            elif key == "properties" and isinstance(member, dict):
                left += ((f"/{each}", member[each]) for each in member)
            else:
                left.append((name if key in IN_PLACE else ELSEWHERE, member))
    everywhere = patterns.pop(ELSEWHERE, set())
    if not whole:
        return len(everywhere.union(*patterns.values()))
    return max((len(everywhere | each) for each in patterns.values()), default=len(everywhere))


def _common_multiple(steps: list[Decimal]) -> int:
    """The least common multiple, in units of the smallest decimal place of any."""
    places = max((-int(step.as_tuple().exponent) for step in steps), default=0)
    if places > 30:
        return MOST_STATES + 1
    try:
        return math.lcm(*(int(step.scaleb(max(0, places))) for step in steps))
    except (InvalidOperation, OverflowError):
        return MOST_STATES + 1
