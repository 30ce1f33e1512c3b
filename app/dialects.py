"""What tells the two endpoints apart once a request is under way: how a reply is spelled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from app.chunks import CHAT_STYLE, COMPLETION_STYLE, Style
from app.logprobs import ChatLogprobs, CompletionLogprobs, TokenBytes


@dataclass(frozen=True, slots=True)
class Dialect:
    """An endpoint's way to speak.

    content: the part of a choice that holds the whole text. logprobs: makes the renderer of one
    sequence's log-probabilities, from what gives a token's bytes, and what gives those that are in
    the text. prompts_in_choices: whether a prompt's token ids, if asked for, stand in its choices.
    """

    id_prefix: str
    object: str
    style: Style
    content: Callable[[str], dict[str, Any]]
    logprobs: Callable[[TokenBytes, TokenBytes], ChatLogprobs | CompletionLogprobs]
    prompts_in_choices: bool = False


def _message(text: str) -> dict[str, Any]:
    return {"message": {"role": "assistant", "content": text, "refusal": None}}


def _text(text: str) -> dict[str, Any]:
    return {"text": text}


def _chat_logprobs(token_bytes: TokenBytes, shown: TokenBytes) -> ChatLogprobs:
    return ChatLogprobs(token_bytes)


CHAT = Dialect("chatcmpl-", "chat.completion", CHAT_STYLE, _message, _chat_logprobs)
COMPLETION = Dialect(
    "cmpl-",
    "text_completion",
    COMPLETION_STYLE,
    _text,
    CompletionLogprobs,
    prompts_in_choices=True,
)
