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
    sequence's log-probabilities.
    """

    id_prefix: str
    object: str
    style: Style
    content: Callable[[str], dict[str, Any]]
    logprobs: Callable[[TokenBytes], ChatLogprobs | CompletionLogprobs]


def _message(text: str) -> dict[str, Any]:
    return {"message": {"role": "assistant", "content": text, "refusal": None}}


def _text(text: str) -> dict[str, Any]:
    return {"text": text}


CHAT = Dialect("chatcmpl-", "chat.completion", CHAT_STYLE, _message, ChatLogprobs)
COMPLETION = Dialect("cmpl-", "text_completion", COMPLETION_STYLE, _text, CompletionLogprobs)
