"""POST /v1/completions."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from pydantic import Field, PlainValidator, field_validator

from app.schemas.parsing import refused, unsupported
from app.schemas.sampling import MAX_N, Generate, PromptLogprobs
from app.schemas.shapes import documented, list_of

OnePrompt: TypeAlias = str | list[int]


def prompts(value: Any) -> list[OnePrompt]:
    """Several prompts, each a string or a list of token ids; one alone need not be in a list.

    A list of integers is one prompt; an empty list is an empty one.
    """
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise refused("must be a string, a list of token ids, or a list of these")
    if value and all(isinstance(entry, str | list) for entry in value):
        return [_one_prompt(entry) for entry in value]
    return [_one_prompt(value)]


def _one_prompt(value: Any) -> OnePrompt:
    if isinstance(value, str):
        return value
    if not all(type(entry) is int for entry in value):
        raise refused("token ids must be integers")
    return value  # type: ignore[no-any-return]


Prompts: TypeAlias = Annotated[
    list[OnePrompt],
    PlainValidator(prompts),
    documented(
        {"type": "string"},
        list_of({"type": "integer"}, least=1),
        list_of({"type": "string"}, least=1),
        list_of(list_of({"type": "integer"}, least=1), least=1),
    ),
]


class CompletionRequest(Generate):
    prompt: Prompts
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None
    prompt_logprobs: PromptLogprobs = None
    best_of: Annotated[int, Field(ge=1, le=MAX_N)] | None = None
    add_special_tokens: bool | None = None
    suffix: str | None = None

    @field_validator("suffix")
    @classmethod
    def _no_suffix(cls, value: str | None) -> str | None:
        if value:
            raise unsupported("is not supported")
        return value

    @property
    def best_from(self) -> int | None:
        return self.best_of

    @property
    def alternatives(self) -> int | None:
        return self.logprobs
