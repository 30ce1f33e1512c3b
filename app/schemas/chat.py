"""POST /v1/chat/completions."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
)

from app.schemas.parsing import WireModel, refused, unsupported
from app.schemas.sampling import Generate, PositiveInt, PromptLogprobs
from app.schemas.shapes import documented, list_of
from app.schemas.tools import (
    FunctionCall,
    Functions,
    Tool,
    ToolChoice,
    Tools,
    ToolWishes,
    called,
)

PART_SEPARATOR = "\n"

IN_TEMPLATES: Final = {"developer": "system", "function": "tool"}
"""Roles that templates know by another name."""

RESERVED = frozenset(
    {"messages", "add_generation_prompt", "continue_final_message", "chat_template", "tokenize"}
)
"""What chat_template_kwargs must not name: it is said elsewhere."""


def flatten(content: Any) -> Any:
    """Turn a list of text parts into one string, the parts joined by a line break."""
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise refused("must be a string or a list of text parts")
    return PART_SEPARATOR.join(_text_of(index, part) for index, part in enumerate(content))


def _text_of(index: int, part: Any) -> str:
    if not isinstance(part, dict):
        raise refused(f"part {index} must be an object")
    if part.get("type") != "text":
        kind = str(part.get("type"))[:40]
        raise unsupported(f"part {index} has type {kind!r}; only text parts are supported")
    text = part.get("text")
    if not isinstance(text, str):
        raise refused(f"part {index} must have a string `text`")
    return text


Content: TypeAlias = Annotated[
    str | None,
    BeforeValidator(flatten),
    documented(
        {"type": "string"},
        list_of(
            {
                "type": "object",
                "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
                "required": ["type", "text"],
            }
        ),
        {"type": "null"},
    ),
]


class ChatMessage(WireModel):
    """One turn. An assistant turn that consists of calls may lack content.

    A `function_call`, and what a `function` said, are how calls and results of tools were told
    before there were any tools.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "anyOf": [
                {"properties": {"content": {"type": ["string", "array"]}}, "required": ["content"]},
                {
                    "properties": {
                        "role": {"const": "assistant"},
                        "tool_calls": {"type": "array", "minItems": 1},
                    },
                    "required": ["tool_calls"],
                },
                {
                    "properties": {
                        "role": {"const": "assistant"},
                        "function_call": {"type": "object", "minProperties": 1},
                    },
                    "required": ["function_call"],
                },
            ]
        }
    )
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    tool_calls: list[Any] | None = None
    function_call: dict[str, Any] | None = None
    tool_call_id: str | None = None
    content: Content = Field(None, validate_default=True)

    @field_validator("content")
    @classmethod
    def _has_content(cls, content: str | None, info: ValidationInfo) -> str:
        if content is not None:
            return content
        calls = info.data.get("tool_calls") or info.data.get("function_call")
        if info.data.get("role") == "assistant" and calls:
            return ""
        raise refused("must be a string or a list of text parts")

    @property
    def calls(self) -> list[dict[str, Any]]:
        """What the turn called, arguments as objects where they are."""
        if self.function_call:
            return called([{"function": self.function_call}])
        return called(self.tool_calls)

    def for_template(self) -> dict[str, str]:
        """The turn as chat templates read it: they know `system` and `tool`, not `developer` and
        `function`."""
        return {"role": IN_TEMPLATES.get(self.role, self.role), "content": self.content or ""}


def _free_names(variables: dict[str, Any]) -> dict[str, Any]:
    if taken := RESERVED & variables.keys():
        raise refused(f"{min(taken)!r} has a field of its own")
    return variables


TemplateVariables: TypeAlias = Annotated[dict[str, Any], AfterValidator(_free_names)]
Messages: TypeAlias = Annotated[list[ChatMessage], Field(min_length=1, fail_fast=True)]


class ChatRequest(Generate):
    messages: Messages
    max_completion_tokens: PositiveInt | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    prompt_logprobs: PromptLogprobs = None
    tools: Tools | None = None
    tool_choice: ToolChoice = None
    parallel_tool_calls: bool | None = None
    functions: Functions | None = None
    function_call: FunctionCall = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: TemplateVariables | None = None

    @field_validator("functions")
    @classmethod
    def _instead_of_tools(cls, value: Any, info: ValidationInfo) -> Any:
        if value is not None and info.data.get("tools") is not None:
            raise refused("give either functions or tools")
        return value

    @field_validator("top_logprobs")
    @classmethod
    def _needs_logprobs(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value is not None and "logprobs" in info.data and not info.data["logprobs"]:
            raise refused("top_logprobs need logprobs: true")
        return value

    @property
    def tool_wishes(self) -> ToolWishes:
        """Which tools may be called, or must. Of functions one is called."""
        if self.functions is not None:
            tools = tuple(Tool(type="function", function=each) for each in self.functions)
            params = ("functions", "function_call")
            return ToolWishes.of(tools, self.function_call, several=False, params=params)
        several = self.parallel_tool_calls is not False
        return ToolWishes.of(tuple(self.tools or ()), self.tool_choice, several=several)

    @property
    def token_limit(self) -> int | None:
        """The newer name wins where both are given."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def alternatives(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None
