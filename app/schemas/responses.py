"""POST /v1/responses: the subset of it that keeps nothing, speaks text, and calls functions."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, field_validator

from app.schemas.chat import PART_SEPARATOR, ChatMessage
from app.schemas.parsing import WireModel, refused, unsupported
from app.schemas.sampling import Generate, PositiveInt
from app.schemas.shapes import documented, list_of
from app.schemas.structure import ResponseFormat, schema_of
from app.schemas.tools import FunctionChoice, FunctionTools, ToolWishes

TEXT_PARTS = frozenset({"input_text", "output_text", "text"})
TEXT_PART = {
    "type": "object",
    "properties": {"type": {"enum": sorted(TEXT_PARTS)}, "text": {"type": "string"}},
    "required": ["type", "text"],
}
TEXT = {"anyOf": [{"type": "string"}, list_of(TEXT_PART)]}
MESSAGE = {
    "type": "object",
    "properties": {
        "type": {"const": "message"},
        "role": {"enum": ["system", "developer", "user", "assistant"]},
        "content": TEXT,
    },
    "required": ["role", "content"],
}
CALL = {
    "type": "object",
    "properties": {
        "type": {"const": "function_call"},
        **{name: {"type": "string"} for name in ("name", "arguments", "call_id")},
    },
    "required": ["type", "name", "arguments", "call_id"],
}
OUTPUT = {
    "type": "object",
    "properties": {
        "type": {"const": "function_call_output"},
        "call_id": {"type": "string"},
        "output": TEXT,
    },
    "required": ["type", "call_id", "output"],
}
LOGPROBS = "message.output_text.logprobs"
"""The member of `include` that asks for log-probabilities."""


def turns(value: Any) -> Any:
    """The input as chat turns, not yet checked: a string is a user's.

    Calls that follow one another, or what the assistant said, are of one turn.
    """
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if not isinstance(value, list):
        raise refused("must be a string or a list of items")
    made: list[dict[str, Any]] = []
    for index, item in enumerate(value):
        turn = _turn(index, item)
        before = made[-1] if made else {}
        if "tool_calls" in turn and before.get("role") == "assistant":
            before["tool_calls"] = before.get("tool_calls", []) + turn["tool_calls"]
        else:
            made.append(turn)
    return made


def _turn(index: int, item: Any) -> dict[str, Any]:
    if not isinstance(item, dict):
        raise refused(f"item {index} must be an object")
    match item.get("type", "message"):
        case "message":
            return {"role": item.get("role"), "content": _content(index, item.get("content"))}
        case "function_call":
            return {"role": "assistant", "tool_calls": [_call(index, item)]}
        case "function_call_output":
            said = _content(index, item.get("output"))
            return {"role": "tool", "tool_call_id": item.get("call_id"), "content": said}
        case kind:
            told = f"item {index} has type {str(kind)[:40]!r}"
            raise unsupported(f"{told}; only messages, calls of functions and their outputs are")


def _call(index: int, item: dict[str, Any]) -> dict[str, Any]:
    """A call that was made, as a chat spells it."""
    told = {name: item.get(name) for name in ("name", "arguments", "call_id")}
    for name, value in told.items():
        if not isinstance(value, str):
            raise refused(f"item {index}: a call must have a string `{name}`")
    function = {"name": told["name"], "arguments": told["arguments"]}
    return {"id": told["call_id"], "type": "function", "function": function}


def _content(index: int, content: Any) -> Any:
    if isinstance(content, list):
        return PART_SEPARATOR.join(_text(index, part) for part in content)
    return content


def _text(index: int, part: Any) -> str:
    if not isinstance(part, dict):
        raise refused(f"item {index}: its parts must be objects")
    kind = part.get("type")
    if not isinstance(kind, str) or kind not in TEXT_PARTS:
        told = f"{str(kind)[:40]!r}"
        raise unsupported(f"item {index} has a part of type {told}; only text is supported")
    if not isinstance(part.get("text"), str):
        raise refused(f"item {index}: a part must have a string `text`")
    return str(part["text"])


def _stateless(value: Any) -> None:
    if value:
        raise unsupported("is not supported: nothing is kept between requests")


Input: TypeAlias = Annotated[
    list[ChatMessage],
    Field(min_length=1, fail_fast=True),
    BeforeValidator(turns),
    documented(
        {"type": "string"},
        list_of(
            {"anyOf": [MESSAGE, CALL, OUTPUT]},
            least=1,
        ),
    ),
]
Kept: TypeAlias = Annotated[Any, AfterValidator(_stateless), documented({"type": "null"})]
"""What would refer to an earlier response, or keep this one."""


class TextConfig(WireModel):
    """What form the answer has."""

    format: ResponseFormat = None


class ResponsesRequest(Generate):
    """`store` is accepted, and nothing is stored. Sampling fields are those of a chat."""

    input: Input
    instructions: str | None = None
    max_output_tokens: PositiveInt | None = None
    text: TextConfig | None = None
    include: list[str] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    tools: FunctionTools | None = None
    tool_choice: FunctionChoice = None
    parallel_tool_calls: bool | None = None
    truncation: Literal["auto", "disabled"] | None = None
    previous_response_id: Kept = None
    conversation: Kept = None
    prompt: Kept = None
    background: Kept = None

    @field_validator("n")
    @classmethod
    def _one_answer(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value not in (None, 1):
            raise unsupported("a response is one answer")
        return value

    @property
    def messages(self) -> list[ChatMessage]:
        """The whole chat: the instructions come first."""
        if not self.instructions:
            return self.input
        return [ChatMessage(role="system", content=self.instructions), *self.input]

    @property
    def tool_wishes(self) -> ToolWishes:
        """Which tools may be called, or must."""
        tools = tuple(tool.as_tool for tool in self.tools or ())
        several = self.parallel_tool_calls is not False
        return ToolWishes.of(tools, self.tool_choice, several=several)

    @property
    def token_limit(self) -> int | None:
        return self.max_tokens if self.max_output_tokens is None else self.max_output_tokens

    @property
    def answer_schema(self) -> tuple[dict[str, Any], str] | None:
        schema = schema_of(self.text.format) if self.text else None
        return super().answer_schema if schema is None else (schema, "text.format")

    @property
    def alternatives(self) -> int | None:
        asked = LOGPROBS in (self.include or ()) or bool(self.top_logprobs)
        return (self.top_logprobs or 0) if asked else None
