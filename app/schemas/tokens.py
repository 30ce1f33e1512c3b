"""POST /tokenize and /detokenize."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, ValidationInfo, field_validator

from app.schemas.chat import Messages, TemplateVariables
from app.schemas.parsing import WireModel, refused
from app.schemas.sampling import TokenIds


class TokenizeRequest(WireModel):
    """Exactly one of `prompt` and `messages`."""

    model_config = ConfigDict(
        json_schema_extra={
            "anyOf": [
                {"properties": {"prompt": {"type": "string"}}, "required": ["prompt"]},
                {"properties": {"messages": {"type": "array"}}, "required": ["messages"]},
            ]
        }
    )
    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: TemplateVariables | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None

    @field_validator("messages")
    @classmethod
    def _instead_of_prompt(cls, value: Any, info: ValidationInfo) -> Any:
        if value is not None and info.data.get("prompt") is not None:
            raise refused("give either prompt or messages")
        return value


class DetokenizeRequest(WireModel):
    model: str | None = None
    tokens: TokenIds
