"""POST /v1/completions."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from pydantic import Field, PlainValidator, field_validator

from app.schemas.parsing import refused, unsupported
from app.schemas.sampling import MAX_N, Generate


def one_prompt(value: Any) -> str | list[int]:
    """A string or a list of token ids; a list that holds exactly one of them is the same."""
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | list):
        value = value[0]
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise refused("must be a string or a list of token ids")
    if any(isinstance(entry, str | list) for entry in value):
        raise unsupported("more than one prompt in a request is not supported")
    if not all(type(entry) is int for entry in value):
        raise refused("token ids must be integers")
    return value


Prompt: TypeAlias = Annotated[str | list[int], PlainValidator(one_prompt)]


class CompletionRequest(Generate):
    prompt: Prompt
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None
    best_of: Annotated[int, Field(ge=1, le=MAX_N)] | None = None
    echo: bool | None = None
    suffix: str | None = None

    @field_validator("echo")
    @classmethod
    def _no_echo(cls, value: bool | None) -> bool | None:
        if value:
            raise unsupported("is not supported")
        return value

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
