"""Tools that a chat may call, and what it called before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias

import orjson
from pydantic import AfterValidator, BeforeValidator, Field

from app.schemas.parsing import WireModel, refused, unsupported
from app.schemas.parts import too_many_levels
from app.schemas.shapes import documented

MOST_TOOLS = 128
"""OpenAI's bound on `tools`."""

NAME = r"^[a-zA-Z0-9_.-]{1,64}$"


class FunctionDefinition(WireModel):
    """parameters: the JSON schema of its arguments; without one it has none. `strict` changes
    nothing: arguments always follow the schema."""

    name: Annotated[str, Field(pattern=NAME)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(WireModel):
    """A function that the client can call."""

    type: Literal["function"]
    function: FunctionDefinition


def _only_functions(value: Any) -> Any:
    """The other tools of OpenAI's Responses run on the server, or have no schema."""
    kind = value.get("type") if isinstance(value, dict) else "function"
    if isinstance(kind, str) and kind != "function":
        raise unsupported(f"tools of type {kind[:40]!r} are not supported; functions are")
    return value


class FunctionTool(FunctionDefinition):
    """A function as /v1/responses spells it: its definition is not a member, but the tool."""

    type: Literal["function"]

    @property
    def as_tool(self) -> Tool:
        """The same, as a chat spells it."""
        return Tool(
            type="function",
            function=FunctionDefinition(
                name=self.name, description=self.description, parameters=self.parameters
            ),
        )


@dataclass(frozen=True, slots=True)
class ToolWishes:
    """What a request says of tools. choice: `none`, `auto` or `required`, or None for no word.

    name: of the one that must be called. several: whether more than one call may come. params: the
    fields in which tools and choice came.
    """

    tools: tuple[Tool, ...] = ()
    choice: str | None = None
    name: str | None = None
    several: bool = True
    params: tuple[str, str] = ("tools", "tool_choice")

    @classmethod
    def of(
        cls,
        tools: tuple[Tool, ...],
        choice: Any,
        *,
        several: bool,
        params: tuple[str, str] = ("tools", "tool_choice"),
    ) -> ToolWishes:
        """With a choice that has been checked."""
        if isinstance(choice, dict):
            name = choice.get("function", choice)["name"]
            return cls(tools, "required", name, several=False, params=params)
        return cls(tools, choice, None, several, params)


def _known_choice(name_of: Callable[[dict[str, Any]], Any], where: str) -> AfterValidator:
    """The check of a tool_choice; name_of: the name in one that is an object."""

    def check(value: Any) -> Any:
        if value is None or (isinstance(value, str) and value in ("none", "auto", "required")):
            return value
        if not isinstance(value, dict):
            raise refused("must be 'none', 'auto', 'required' or an object that names a function")
        if value.get("type") != "function":
            raise unsupported(f"type {str(value.get('type'))[:40]!r} is not supported")
        if not isinstance(name_of(value), str):
            raise refused(f"must have a {where}")
        return value

    return AfterValidator(check)


def _name_within(value: dict[str, Any]) -> Any:
    function = value.get("function")
    return function.get("name") if isinstance(function, dict) else None


WORDS = {"enum": ["none", "auto", "required", None]}
NAMED = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}

Tools: TypeAlias = Annotated[list[Tool], Field(max_length=MOST_TOOLS)]
FunctionTools: TypeAlias = Annotated[
    list[Annotated[FunctionTool, BeforeValidator(_only_functions)]], Field(max_length=MOST_TOOLS)
]
ToolChoice: TypeAlias = Annotated[
    Any,
    _known_choice(_name_within, "function with a name"),
    documented(
        WORDS,
        {
            "type": "object",
            "properties": {"type": {"const": "function"}, "function": NAMED},
            "required": ["type", "function"],
        },
    ),
]
FunctionChoice: TypeAlias = Annotated[
    Any,
    _known_choice(lambda value: value.get("name"), "name"),
    documented(
        WORDS,
        {
            "type": "object",
            "properties": {"type": {"const": "function"}, "name": {"type": "string"}},
            "required": ["type", "name"],
        },
    ),
]


def _known_function(value: Any) -> Any:
    """Check a function_call, the older form of a tool_choice."""
    if value is None or (isinstance(value, str) and value in ("none", "auto")):
        return value
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise refused("must be 'none', 'auto' or an object with the name of a function")
    return value


Functions: TypeAlias = Annotated[list[FunctionDefinition], Field(max_length=MOST_TOOLS)]
"""Tools as they were asked for before there were `tools`."""

FunctionCall: TypeAlias = Annotated[
    Any, AfterValidator(_known_function), documented({"enum": ["none", "auto", None]}, NAMED)
]


def called(tool_calls: list[Any] | None) -> list[dict[str, Any]]:
    """The calls of an assistant's turn, with arguments as objects where they are; templates want
    it so. What is no call is left out."""
    calls = []
    for call in tool_calls or ():
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict) and isinstance(function.get("name"), str):
            arguments = _arguments(function.get("arguments"))
            told = {"name": function["name"], "arguments": arguments}
            calls.append({"id": str(call.get("id", "")), "type": "function", "function": told})
    return calls


def _arguments(value: Any) -> Any:
    """As JSON, unless they are none or too deep to be written in a prompt again."""
    if not isinstance(value, str):
        return value or {}
    try:
        arguments = orjson.loads(value)
    except orjson.JSONDecodeError:
        return value
    return value if too_many_levels(arguments) else arguments
