"""Which tools an answer may call, and the grammar of such an answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from app.errors import invalid
from app.schemas.chat import ChatRequest
from app.schemas.tools import Tool
from app.structured.bounds import Unfit, check_schema
from app.structured.source import OPTIONS, WHITESPACE, Source, schema_text
from app.structured.wishes import check_controls, others_than_format

OPENING: Final = "<tool_call>"
"""What a call begins with, on a line of its own; then a line of JSON, then the closing tag."""

CLOSING: Final = "</tool_call>"
PARAM: Final = "tools"


@dataclass(frozen=True, slots=True)
class Toolbox:
    """What a chat may call. tools: those on offer. callable: those that may be called now.

    required: at least one must be called. several: more than one call may come.
    """

    tools: tuple[Tool, ...]
    callable: tuple[Tool, ...]
    required: bool
    several: bool

    @classmethod
    def of(cls, request: ChatRequest) -> Toolbox | None:
        """The tools of a request; None if it has none, or wants none called.

        Raises ApiError (400) where the request demands a tool that is not there.
        """
        tools, choice = tuple(request.tools or ()), request.tool_choice
        if choice == "none" or (not tools and choice in (None, "auto")):
            return None
        allowed = tools
        if isinstance(choice, dict):
            name = choice["function"]["name"]
            allowed = tuple(tool for tool in tools if tool.function.name == name)
        if not allowed:
            raise invalid("tool_choice demands a tool that is not among the tools.", "tool_choice")
        named = isinstance(choice, dict)
        several = not named and request.parallel_tool_calls is not False
        return cls(tools, allowed, named or choice == "required", several)

    @property
    def definitions(self) -> list[dict[str, Any]]:
        """The tools as templates show them."""
        return [
            tool.model_dump(include={"type", "function"}, exclude_none=True) for tool in self.tools
        ]


def tools_source(box: Toolbox, request: ChatRequest) -> Source:
    """The grammar of an answer that may call tools. Raises ApiError (400).

    Unless a call is required, anything else may be said instead: text, in front of a call as well,
    or JSON, where the request asks for that.
    """
    if other := others_than_format(request):
        raise invalid(f"{other} cannot be combined with tools.", other)
    check_controls(request, PARAM)
    free = not box.required and request.answer_schema is None
    rules = [
        "%llguidance {}",
        f"start: calls{'' if box.required else ' | other'}",
        f"calls: opening body{' (next body)*' if box.several else ''}",
        f"opening[lazy]: /(.|\\n)*{OPENING}/" if free else f'opening: "{OPENING}"',
        f'next: "\\n{OPENING}"',
        f'body: "\\n" ({" | ".join(f"call_{i}" for i in range(len(box.callable)))}) "\\n{CLOSING}"',
        *(_call(number, tool) for number, tool in enumerate(box.callable)),
    ]
    if free:
        rules.append("other: /(.|\\n)*/")
    elif request.answer_schema is not None and not box.required:
        rules.append(f"other: %json {_within(*request.answer_schema)}")
    return Source("tools", "\n".join(rules), PARAM, OPENING if free else "")


def _call(number: int, tool: Tool) -> str:
    """The rule of a call of one tool."""
    head = f'{{"name": "{tool.function.name}", "arguments": '
    arguments = _within(_parameters(tool), PARAM)
    return f'call_{number}: {orjson.dumps(head).decode()} %json {arguments} "}}"'


def _parameters(tool: Tool) -> Mapping[str, Any]:
    """The schema of a tool's arguments: an object, whatever it says."""
    parameters = tool.function.parameters
    if parameters is None:
        return {"type": "object", "additionalProperties": False}
    return {"type": "object", **parameters}


def _within(schema: Mapping[str, Any], param: str) -> str:
    """A schema as it stands inside a grammar."""
    text = schema_text(schema, param)
    try:
        check_schema(text)
    except Unfit as reason:
        raise Source("json", text, param).refused(str(reason)) from None
    options = orjson.dumps({OPTIONS: {"whitespace_pattern": WHITESPACE}}).decode()
    return options if text == "{}" else f"{options[:-1]},{text[1:]}"
