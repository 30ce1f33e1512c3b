"""From what a client wrote to the token ids of a prompt that fits."""

from __future__ import annotations

from collections.abc import Sequence

from app.errors import context_exceeded, invalid, sentence
from app.schemas.chat import ChatMessage
from app.service import Service
from app.text.template import encode_segments
from app.text.tokenizer import encode_prompt


def chat_tokens(
    service: Service, messages: Sequence[ChatMessage], *, add_generation_prompt: bool = True
) -> list[int]:
    """Token ids of a rendered chat. Raises ApiError (400)."""
    if service.template is None:
        raise invalid("This model has no chat template; use /v1/completions.", "messages")
    if len(messages) >= service.max_model_len:  # each costs a token at least
        raise context_exceeded(service.max_model_len, f"at least {len(messages)}", "messages")
    turns = [message.for_template() for message in messages]
    try:
        segments = service.template.render(turns, add_generation_prompt=add_generation_prompt)
        text = "".join(segment.text for segment in segments if not segment.control)
        _refuse_hopeless(service, text, "messages")
        return encode_segments(service.tokenizer, segments)
    except ValueError as error:  # a TemplateError, or text that no token stands for
        raise invalid(sentence(str(error)), "messages") from None


def completion_tokens(service: Service, prompt: str | Sequence[int]) -> list[int]:
    """Token ids of a plain prompt. Raises ApiError (400)."""
    if not isinstance(prompt, str):
        check_ids(service, prompt, "prompt")
        return list(prompt)
    _refuse_hopeless(service, prompt, "prompt")
    try:
        return encode_prompt(service.tokenizer, prompt)
    except ValueError as error:
        raise invalid(sentence(str(error)), "prompt") from None


def check_ids(service: Service, ids: Sequence[int], param: str) -> None:
    """Raises ApiError (400) unless all `ids` are in the vocabulary."""
    vocabulary = service.tokenizer.vocab_size
    wrong = next((token for token in ids if not 0 <= token < vocabulary), None)
    if wrong is not None:
        raise invalid(f"{param}: token ids go from 0 to {vocabulary - 1}.", param)


def fit(
    service: Service, prompt: Sequence[int], param: str, asked: int | None, default: int | None
) -> int:
    """Tokens to generate at most, behind a prompt that came in the field `param`.

    What the client asked for must fit into the context behind the prompt; the default (None: all
    that is left) is cut to what fits. Both are cut to the server's own limit. Raises ApiError
    (400) for an empty prompt or one that leaves no room.
    """
    if not prompt:
        raise invalid("The prompt must not be empty.", param)
    length = service.max_model_len
    left = length - len(prompt)
    if left < 1 or (asked is not None and asked > left):
        raise context_exceeded(length, str(len(prompt)), param, asked or 0)
    wanted = asked if asked is not None else min(left, left if default is None else default)
    limit = service.limits.max_output_tokens
    return wanted if limit is None else min(wanted, limit)


def _refuse_hopeless(service: Service, text: str, param: str) -> None:
    """Refuse by length alone what cannot fit, however it is cut into tokens."""
    fewest = service.tokenizer.fewest_tokens(text)
    if fewest >= service.max_model_len:
        raise context_exceeded(service.max_model_len, f"at least {fewest}", param)
