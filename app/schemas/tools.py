"""Tools that a chat may call, and what it called before."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import orjson
from pydantic import AfterValidator, Field

from app.schemas.parsing import WireModel, refused, unsupported
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


def _known_choice(value: Any) -> Any:
    if value is None or (isinstance(value, str) and value in ("none", "auto", "required")):
        return value
    if not isinstance(value, dict):
        raise refused("must be 'none', 'auto', 'required' or an object that names a function")
    if value.get("type") != "function":
        raise unsupported(f"type {str(value.get('type'))[:40]!r} is not supported")
    function = value.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise refused("must have a function with a name")
    return value


Tools: TypeAlias = Annotated[list[Tool], Field(max_length=MOST_TOOLS)]
ToolChoice: TypeAlias = Annotated[
    Any,
    AfterValidator(_known_choice),
    documented(
        {"enum": ["none", "auto", "required", None]},
        {
            "type": "object",
            "properties": {
                "type": {"const": "function"},
                "function": {
                    "type": "object",
                    "properties": {"name": {"type": "string"}},
                    "required": ["name"],
                },
            },
            "required": ["type", "function"],
        },
    ),
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
    if not isinstance(value, str):
        return value or {}
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError:
        return value
