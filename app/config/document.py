"""YAML with line numbers, read as YAML 1.2 reads it.

PyYAML speaks YAML 1.1, in which `on` is a boolean, 012 is ten, 1:30 is ninety and 1e3 is a string.
Here only true and false are booleans and everything that looks like a number is that number.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

import yaml

_TAG: Final = "tag:yaml.org,2002:"
_CORE_SCHEMA: Final = (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    (
        "float",
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?"
        r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
)


class _CoreLoader(yaml.SafeLoader):
    """Resolves plain scalars by YAML 1.2's core schema."""

    yaml_implicit_resolvers = {}  # noqa: RUF012


for _name, _pattern, _first in _CORE_SCHEMA:
    _CoreLoader.add_implicit_resolver(_TAG + _name, re.compile(rf"(?:{_pattern})\Z"), _first)


def compose(text: str, under: Sequence[str] = ()) -> yaml.Node:
    """Parse one YAML document, and nest it under the keys `under`; empty text is null.

    Raises yaml.YAMLError.
    """
    try:
        node = yaml.compose(text, Loader=_CoreLoader)
    except RecursionError:
        raise yaml.YAMLError("nested too deeply") from None
    start = yaml.Mark("", 0, 0, 0, None, 0)
    nested = node if isinstance(node, yaml.Node) else yaml.ScalarNode(_TAG + "null", "", start)
    for name in reversed(under):
        entry = (yaml.ScalarNode(_TAG + "str", name, start), nested)
        nested = yaml.MappingNode(_TAG + "map", [entry], start)
    return nested


def is_empty(node: yaml.Node) -> bool:
    """Whether a node says nothing: null or an empty mapping."""
    return node.tag == _TAG + "null" or (isinstance(node, yaml.MappingNode) and not node.value)


def reads_as_itself(text: str) -> bool:
    """Whether `text`, written without quotes, is read as the string `text`."""
    try:
        node = compose(f"key: {text}").value[0][1]
    except yaml.YAMLError:
        return False
    return isinstance(node, yaml.ScalarNode) and node.tag == f"{_TAG}str" and node.value == text


def line_of(node: yaml.Node) -> int:
    """The line a node starts on, counted from 1."""
    return int(node.start_mark.line) + 1


def explain(error: yaml.YAMLError) -> tuple[int | None, str]:
    """The line of a parse error, if it has one, and one line that says what is wrong there."""
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem is None:
        return None, " ".join(str(error).split())
    mark = error.problem_mark or error.context_mark
    problem = error.problem.replace("'\\t'", "a tab").replace('"\\t"', "a tab")
    hint = "; indent with spaces" if "a tab" in problem else ""
    return (mark.line + 1 if mark else None), problem + hint


def duplicates(node: yaml.Node, path: tuple[str, ...] = ()) -> Iterator[tuple[str, int, int]]:
    """Keys given twice in one mapping, at any depth: dotted key, its line, the first one's line."""
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from duplicates(item, path)
    if not isinstance(node, yaml.MappingNode):
        return
    first: dict[str, int] = {}
    for key_node, value_node in node.value:
        name = key(key_node)
        line = line_of(key_node)
        if name in first:
            yield ".".join((*path, name)), line, first[name]
        first.setdefault(name, line)
        yield from duplicates(value_node, (*path, name))


def plain(node: yaml.Node) -> object:
    """The Python value of a node: None, bool, int, float, str, list or dict.

    Raises yaml.YAMLError for tags such as !!set and for keys that are not scalars.
    """
    if isinstance(node, yaml.SequenceNode):
        return [plain(item) for item in node.value]
    if isinstance(node, yaml.MappingNode):
        return {key(name): plain(value) for name, value in node.value}
    return _scalar(str(node.tag).removeprefix(_TAG), str(node.value), node)


def key(node: yaml.Node) -> str:
    """The name that a key node spells. Raises yaml.YAMLError if it is not a scalar."""
    if isinstance(node, yaml.ScalarNode):
        return str(node.value)
    raise yaml.MarkedYAMLError(problem="a key must be a name", problem_mark=node.start_mark)


def _scalar(tag: str, text: str, node: yaml.Node) -> object:
    try:
        match tag:
            case "str":
                return text
            case "null":
                return None
            case "bool":
                return text.lower() == "true"
            case "int":
                return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))
            case "float":
                return float(re.sub(r"\.(?=inf|nan)", "", text.lower()))
    except ValueError:
        problem = f"{text[:40]} is not a number that can be read"
        raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark) from None
    raise yaml.MarkedYAMLError(problem=f"unknown tag !!{tag}", problem_mark=node.start_mark)
