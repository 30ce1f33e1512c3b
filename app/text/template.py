"""Chat templates: messages to segments of text and control tokens, in jinja2's sandbox."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from app.text.shield import Segment, Shield
from app.text.tokenizer import Tokenizer
from engine.errors import ModelError


class TemplateError(ValueError):
    """The template cannot render these messages; the text may be shown to the client."""


class ChatTemplate:
    """A chat template, compiled once; rendering is thread-safe.

    calls_tools: whether it knows `tools`, and calls between the tags that are read here.
    """

    def __init__(
        self,
        source: str,
        control: Iterable[str] = (),
        *,
        bos_token: str = "",
        eos_token: str = "",
        max_chars: int = 1 << 24,
    ) -> None:
        """Compile `source`.

        control: texts of the model's control tokens. max_chars: longer results are refused.
        Raises ModelError if the source is not a template.
        """
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ModelError(
                f"the model's chat template, line {error.lineno}: {error.message}"
            ) from error
        self._shield = Shield(control, source)
        self.calls_tools = "tools" in source and "<tool_call>" in source
        self._fixed = {"bos_token": bos_token, "eos_token": eos_token}
        self._max_chars = max_chars

    @classmethod
    def for_tokenizer(cls, tokenizer: Tokenizer) -> ChatTemplate | None:
        """The template that comes with `tokenizer`; None if it has none."""
        source = tokenizer.chat_template
        return None if source is None else cls.of(source, tokenizer)

    @classmethod
    def of(cls, source: str, tokenizer: Tokenizer) -> ChatTemplate:
        """A template for the tokens of `tokenizer`. Raises ModelError if it is none."""
        return cls(
            source,
            tokenizer.control,
            bos_token=tokenizer.bos_token,
            eos_token=tokenizer.eos_token,
        )

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continues: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> list[Segment]:
        """Render `messages` (and `variables`, such as tools) to segments.

        continues: end where the text of the last message ends, so that it can be gone on with.
        No string inside them, at whatever depth, ends up in a control segment. Raises
        TemplateError for everything that goes wrong.
        """
        mark = ""
        try:
            covered, mark = self._shield.cover({**(variables or {}), "messages": messages})
            context = {**covered, **self._fixed, "add_generation_prompt": add_generation_prompt}
            if not continues:
                return self._shield.split(self._render_text(context), mark)
            end = self._shield.another_mark(mark, covered)
            *before, last = covered["messages"]
            context["messages"] = [*before, {**last, "content": last["content"] + end}]
            return self._shield.split(_up_to(end, self._render_text(context)), mark)
        except TemplateError:
            raise
        except Exception as error:
            raise TemplateError(_explain(error, mark)) from error

    def _render_text(self, context: Mapping[str, Any]) -> str:
        pieces = []
        size = 0
        for piece in self._template.generate(context):
            size += len(piece)
            if size > self._max_chars:
                raise TemplateError(
                    f"the rendered messages are longer than {self._max_chars} characters"
                )
            pieces.append(piece)
        return "".join(pieces)


def _up_to(end: str, rendered: str) -> str:
    text, *rest = rendered.split(end)
    if len(rest) != 1:
        raise TemplateError("the chat template does not show the last message, so it cannot go on")
    return text


def encode_segments(tokenizer: Tokenizer, segments: Iterable[Segment]) -> list[int]:
    """Token ids of rendered segments. Raises ValueError for a lone surrogate."""
    ids: list[int] = []
    for segment in segments:
        if segment.control:
            ids.append(tokenizer.control[segment.text])
        else:
            ids.extend(tokenizer.encode(segment.text, continues=bool(ids)))
    return ids


def _environment() -> ImmutableSandboxedEnvironment:
    """What chat templates expect to find: the conventions of Hugging Face transformers."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """jinja2's own filter would escape HTML characters."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _explain(error: Exception, mark: str) -> str:
    if isinstance(error, RecursionError):
        return "the messages are nested too deeply"
    reason = str(error).replace(mark, "") if mark else str(error)
    return f"the chat template refused the messages: {reason[:500]}"
