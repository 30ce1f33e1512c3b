"""Replies that consist of choices: chat completions and completions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from app.choices import Choice, Piece
from app.chunks import DONE, Chunks, Extra, Identity, Usage, completion_body, error_event
from app.dialects import Dialect
from app.errors import ApiError
from app.logprobs import (
    ChatLogprobs,
    CompletionLogprobs,
    first_alternatives,
    prompt_logprobs,
)
from app.replies.base import Report
from app.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a client wants to see beside the text.

    usage: tokens counted behind a stream; running_usage: and in each of its chunks. logprobs,
    token_ids: of the answers. alternatives: how many the logprobs have. prompt_logprobs: how many
    those of the prompt have; None for nothing of them. special: whether control tokens are shown in
    the text.
    """

    usage: bool = False
    running_usage: bool = False
    logprobs: bool = False
    alternatives: int = 0
    prompt_logprobs: int | None = None
    token_ids: bool = False
    special: bool = False


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as token ids. echo: the text that its answers begin with."""

    ids: Sequence[int]
    echo: str = ""


class ChoicesReply:
    """Spells `count` choices in the words of a dialect. prompts: what they answer."""

    def __init__(
        self,
        dialect: Dialect,
        identity: Identity,
        tokenizer: Tokenizer,
        wishes: Wishes,
        prompts: Sequence[Prompt],
        count: int,
    ) -> None:
        self._dialect = dialect
        self._identity = identity
        self._tokenizer = tokenizer
        self._wishes = wishes
        self._prompts = prompts
        self._plain = not (wishes.logprobs or wishes.running_usage or wishes.token_ids)
        self._chunks = Chunks(dialect.style, identity, usage=wishes.usage)
        self._count = count
        self._logprobs: dict[int, ChatLogprobs | CompletionLogprobs] = {}
        self._begun: set[int] = set()
        self._completion = 0

    # ---------------------------------------------------------------- at once

    def whole(self, choices: Sequence[tuple[Choice, Piece]], report: Report) -> bytes:
        spelled = [
            {"index": index, **self._choice(choice, piece)}
            for index, (choice, piece) in enumerate(choices)
        ]
        extra: dict[str, Any] = {}
        if self._wishes.token_ids and not self._dialect.prompts_in_choices:
            extra["prompt_token_ids"] = self._prompts[0].ids
        if self._wishes.prompt_logprobs is not None and not self._dialect.prompts_in_choices:
            extra["prompt_logprobs"] = self._of_the_prompt(choices[0][0])
        if report.metrics is not None:
            extra["metrics"] = report.metrics
        return completion_body(self._dialect.object, self._identity, spelled, report.usage, extra)

    def _choice(self, choice: Choice, piece: Piece) -> dict[str, Any]:
        prompt = self._prompts[choice.prompt]
        spelled = {
            **self._dialect.content(prompt.echo + piece.text),
            "logprobs": self._render_logprobs(choice, piece),
            "finish_reason": piece.finish_reason,
            "stop_reason": piece.stop_reason,
        }
        if self._wishes.token_ids:
            spelled["token_ids"] = piece.tokens
            if self._dialect.prompts_in_choices:
                spelled["prompt_token_ids"] = prompt.ids
        if self._wishes.prompt_logprobs is not None and self._dialect.prompts_in_choices:
            spelled["prompt_logprobs"] = self._of_the_prompt(choice)
        return spelled

    # ---------------------------------------------------------------- piece by piece

    def begin(self) -> bytes:
        return self._chunks.opening(self._count) if self._count > 1 else b""

    def add(self, choice: Choice, piece: Piece) -> bytes:
        if self._plain and piece.finish_reason is None and choice.index in self._begun:
            return self._chunks.plain(choice.index, piece.text)
        wishes = self._wishes
        text = piece.text
        first = choice.index not in self._begun
        if first:
            self._begun.add(choice.index)
            text = self._prompts[choice.prompt].echo + text
        return self._chunks.frame(
            choice.index,
            text,
            logprobs=self._render_logprobs(choice, piece) if wishes.logprobs else None,
            finish_reason=piece.finish_reason,
            stop_reason=piece.stop_reason,
            usage=self._usage_so_far(piece) if wishes.running_usage else None,
            extra=self._token_ids(choice, piece, first) if wishes.token_ids else None,
        )

    def silence(self) -> bytes:
        return self._chunks.silence()

    def end(self, report: Report) -> bytes:
        if not self._wishes.usage:
            return DONE
        return self._chunks.usage(report.usage, report.metrics) + DONE

    def fail(self, error: ApiError) -> bytes:
        return error_event(error.body()) + DONE

    def _usage_so_far(self, piece: Piece) -> Usage:
        self._completion += len(piece.tokens)
        return Usage(sum(len(prompt.ids) for prompt in self._prompts), self._completion, None)

    def _token_ids(self, choice: Choice, piece: Piece, first: bool) -> Extra:
        prompt = {"prompt_token_ids": self._prompts[choice.prompt].ids} if first else {}
        tokens = {"token_ids": piece.tokens}
        if self._dialect.prompts_in_choices:
            return Extra(choice={**prompt, **tokens})
        return Extra(choice=tokens, chunk=prompt if choice.index == 0 else {})

    # ---------------------------------------------------------------- both

    def _render_logprobs(self, choice: Choice, piece: Piece) -> dict[str, Any] | None:
        if not self._wishes.logprobs:
            return None
        renderer = self._logprobs.get(choice.index)
        if renderer is None:
            renderer = self._dialect.logprobs(self._tokenizer.token_bytes, self._shown)
            self._logprobs[choice.index] = renderer
            prompt = self._prompts[choice.prompt]
            if prompt.echo and isinstance(renderer, CompletionLogprobs):
                known = first_alternatives(choice.prompt_logprobs, self._wishes.alternatives)
                renderer.begin_with(prompt.ids, known, prompt.echo)
        return renderer.render(piece.entries)

    def _of_the_prompt(self, choice: Choice) -> list[dict[str, Any] | None]:
        known = first_alternatives(choice.prompt_logprobs, self._wishes.prompt_logprobs or 0)
        ids = self._prompts[choice.prompt].ids
        return prompt_logprobs(ids, known, self._tokenizer.token_bytes)

    def _shown(self, token: int) -> bytes:
        """The bytes of a token as far as they are in the text."""
        if not self._wishes.special and self._tokenizer.is_control(token):
            return b""
        return self._tokenizer.token_bytes(token)
