"""From what a client wrote to the token ids of a prompt that fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.errors import context_exceeded, invalid, sentence
from app.schemas.chat import ChatMessage, ChatRequest
from app.schemas.parsing import UNSUPPORTED
from app.schemas.tokens import TokenizeRequest
from app.service import Service
from app.text.template import ChatTemplate, encode_segments
from app.tools.prompt import turns_for
from app.tools.toolbox import Toolbox
from engine.errors import ModelError


@dataclass(frozen=True, slots=True)
class TemplateOptions:
    """How a chat becomes a prompt.

    opens: whether the turn of the answer is opened. continues: whether the last message is gone on
    with instead. variables: for the template. template: one that came with the request. tools: what
    may be called.
    """

    opens: bool = True
    continues: bool = False
    variables: Mapping[str, Any] | None = None
    template: str | None = None
    tools: Toolbox | None = None

    @classmethod
    def of(
        cls, request: ChatRequest | TokenizeRequest, tools: Toolbox | None = None
    ) -> TemplateOptions:
        """What a request asks for. Raises ApiError (400) for what does not go together."""
        continues = bool(request.continue_final_message)
        if continues and request.add_generation_prompt:
            message = "A message cannot be gone on with behind the opening of another."
            raise invalid(message, "continue_final_message")
        opens = request.add_generation_prompt is not False and not continues
        return cls(opens, continues, request.chat_template_kwargs, request.chat_template, tools)


def chat_tokens(
    service: Service,
    messages: Sequence[ChatMessage],
    options: TemplateOptions = TemplateOptions(),
    *,
    param: str = "messages",
) -> list[int]:
    """Token ids of a rendered chat that came in the field `param`. Raises ApiError (400)."""
    template = _template(service, options.template)
    if len(messages) >= service.max_model_len:  # each costs a token at least
        raise context_exceeded(service.max_model_len, f"at least {len(messages)}", param)
    turns = turns_for(messages, options.tools, template.calls_tools)
    variables = dict(options.variables or {})
    if options.tools is not None and template.calls_tools:
        variables = {"tools": options.tools.definitions, **variables}
    try:
        segments = template.render(
            turns,
            add_generation_prompt=options.opens,
            continues=options.continues,
            variables=variables,
        )
        text = "".join(segment.text for segment in segments if not segment.control)
        _refuse_hopeless(service, text, param)
        return encode_segments(service.tokenizer, segments)
    except ValueError as error:  # a TemplateError, or text that no token stands for
        raise invalid(sentence(str(error)), param) from None


def _template(service: Service, source: str | None) -> ChatTemplate:
    """The model's, or the one in the request where that is allowed."""
    if source is not None:
        if not service.request_templates:
            message = "Templates in requests are off here (api.request_templates)."
            raise invalid(message, "chat_template", UNSUPPORTED)
        try:
            return ChatTemplate.of(source, service.tokenizer)
        except ModelError as error:
            raise invalid(sentence(str(error)), "chat_template") from None
    if service.template is None:
        raise invalid("This model has no chat template; use /v1/completions.", "messages")
    return service.template


def completion_tokens(
    service: Service, prompt: str | Sequence[int], *, special: bool = True
) -> list[int]:
    """Token ids of a plain prompt; special: with what the model's file puts before each.

    Raises ApiError (400).
    """
    if not isinstance(prompt, str):
        check_ids(service, prompt, "prompt")
        return list(prompt)
    _refuse_hopeless(service, prompt, "prompt")
    try:
        return [*(service.tokenizer.prefix if special else ()), *service.tokenizer.encode(prompt)]
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
