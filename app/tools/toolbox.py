"""Which tools an answer may call, and the grammar of such an answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from app.errors import invalid
from app.schemas.sampling import Generate
from app.schemas.tools import Tool, ToolWishes
from app.structured.bounds import Unfit, check_schema
from app.structured.kinds import WHITESPACE
from app.structured.source import OPTIONS, Source, schema_text
from app.structured.wishes import check_controls, others_than_format

OPENING: Final = "<tool_call>"
"""What a call begins with, on a line of its own; then a line of JSON, then the closing tag."""

CLOSING: Final = "</tool_call>"


@dataclass(frozen=True, slots=True)
class Toolbox:
    """What an answer may call. tools: those on offer. callable: those that may be called now.

    required: at least one must be called. several: more than one call may come. param: the field
    that the tools came in.
    """

    tools: tuple[Tool, ...]
    callable: tuple[Tool, ...]
    required: bool
    several: bool
    param: str

    @classmethod
    def of(cls, wishes: ToolWishes) -> Toolbox | None:
        """The tools of a request; None if it has none, or wants none called.

        Raises ApiError (400) where the request demands a tool that is not there.
        """
        tools, required = wishes.tools, wishes.choice == "required"
        if wishes.choice == "none" or not (tools or required):
            return None
        allowed = tools
        if wishes.name is not None:
            allowed = tuple(tool for tool in tools if tool.function.name == wishes.name)
        listed, demands = wishes.params
        if not tools:
            raise invalid(f"{demands} demands a call, but there are no {listed}.", demands)
        if not allowed:
            raise invalid(f"{demands} demands one that is not among the {listed}.", demands)
        return cls(tools, allowed, required, wishes.several, wishes.params[0])

    @property
    def definitions(self) -> list[dict[str, Any]]:
        """The tools as templates show them."""
        return [
            tool.model_dump(include={"type", "function"}, exclude_none=True) for tool in self.tools
        ]


def tools_source(box: Toolbox, request: Generate) -> Source:
    """The grammar of an answer that may call tools. Raises ApiError (400).

    Unless a call is required, anything else may be said instead: text, in front of a call as well,
    or JSON, where the request asks for that.
    """
    if other := others_than_format(request):
        raise invalid(f"{other} cannot be combined with {box.param}.", other)
    check_controls(request, box.param)
    free = not box.required and request.answer_schema is None
    rules = [
        "%llguidance {}",
        f"start: calls{'' if box.required else ' | other'}",
        f"calls: opening body{' (next body)*' if box.several else ''}",
        f"opening[lazy]: /(.|\\n)*{OPENING}/" if free else f'opening: "{OPENING}"',
        f'next: "\\n{OPENING}"',
        f'body: "\\n" ({" | ".join(f"call_{i}" for i in range(len(box.callable)))}) "\\n{CLOSING}"',
        *(_call(number, tool, box.param) for number, tool in enumerate(box.callable)),
    ]
    if free:
        rules.append("other: /(.|\\n)*/")
    elif request.answer_schema is not None and not box.required:
        rules.append(f"other: %json {_within(*request.answer_schema)}")
    return Source("tools", "\n".join(rules), box.param, OPENING if free else "")


def _call(number: int, tool: Tool, param: str) -> str:
    """The rule of a call of one tool, which came in the field `param`."""
    head = f'{{"name": "{tool.function.name}", "arguments": '
    arguments = _within(_parameters(tool), param)
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
