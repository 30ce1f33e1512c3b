"""Replies of /v1/responses: one message of one text, as an object or as typed events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from app.choices import Choice, Piece
from app.chunks import Identity, Usage
from app.errors import ApiError
from app.logprobs import ChatLogprobs, Entry
from app.replies.base import Report
from app.schemas.responses import ResponsesRequest
from app.text.tokenizer import Tokenizer

PLACE = {"output_index": 0, "content_index": 0}
"""Where the one text stands in a response."""


class ResponseReply:
    """Spells one answer. Events are numbered from 0 on; a stream has no other end than its last."""

    def __init__(self, request: ResponsesRequest, identity: Identity, tokenizer: Tokenizer) -> None:
        self._identity = identity
        self._item_id = "msg_" + identity.id.removeprefix("resp_")
        self._logprobs = ChatLogprobs(tokenizer.token_bytes)
        self._wants_logprobs = request.alternatives is not None
        self._asked = _asked(request)
        self._next = 0
        self._text: list[str] = []
        self._entries: list[Entry] = []
        self._finish_reason: str | None = None

    def whole(self, choices: Sequence[tuple[Choice, Piece]], report: Report) -> bytes:
        ((_, piece),) = choices
        self._take(piece)
        return orjson.dumps(self._ended(report))

    # ---------------------------------------------------------------- piece by piece

    def begin(self) -> bytes:
        response = self._response("in_progress", [])
        return b"".join(
            (
                self._event("response.created", response=response),
                self._event("response.in_progress", response=response),
                self._event(
                    "response.output_item.added",
                    output_index=0,
                    item=self._item("in_progress", []),
                ),
                self._event("response.content_part.added", **self._here(), part=self._part("", [])),
            )
        )

    def add(self, choice: Choice, piece: Piece) -> bytes:
        self._take(piece)
        return self._event(
            "response.output_text.delta",
            **self._here(),
            delta=piece.text,
            logprobs=self._render(piece.entries),
        )

    def silence(self) -> bytes:
        return self._event("response.in_progress", response=self._response("in_progress", []))

    def end(self, report: Report) -> bytes:
        response = self._ended(report)
        (item,) = response["output"]
        (part,) = item["content"]
        return b"".join(
            (
                self._event(
                    "response.output_text.done",
                    **self._here(),
                    text=part["text"],
                    logprobs=part["logprobs"],
                ),
                self._event("response.content_part.done", **self._here(), part=part),
                self._event("response.output_item.done", output_index=0, item=item),
                self._event(f"response.{response['status']}", response=response),
            )
        )

    def fail(self, error: ApiError) -> bytes:
        told = orjson.loads(error.body())["error"]
        names = {name: told[name] for name in ("code", "message", "param")}
        return self._event("error", **names, error=told)

    # ---------------------------------------------------------------- parts

    def _take(self, piece: Piece) -> None:
        self._text.append(piece.text)
        if self._wants_logprobs:
            self._entries += piece.entries
        self._finish_reason = piece.finish_reason

    def _event(self, kind: str, **members: Any) -> bytes:
        data = orjson.dumps({"type": kind, "sequence_number": self._next, **members})
        self._next += 1
        return b"event: " + kind.encode() + b"\ndata: " + data + b"\n\n"

    def _here(self) -> dict[str, Any]:
        return {"item_id": self._item_id, **PLACE}

    def _render(self, entries: Sequence[Entry]) -> list[Any]:
        if not self._wants_logprobs:
            return []
        content: list[Any] = self._logprobs.render(entries)["content"]
        return content

    def _part(self, text: str, logprobs: list[Any]) -> dict[str, Any]:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}

    def _item(self, status: str, content: list[Any]) -> dict[str, Any]:
        return {
            "id": self._item_id,
            "type": "message",
            "status": status,
            "role": "assistant",
            "content": content,
        }

    def _ended(self, report: Report) -> dict[str, Any]:
        status = "incomplete" if self._finish_reason == "length" else "completed"
        part = self._part("".join(self._text), self._render(self._entries))
        response = self._response(status, [self._item(status, [part])], report.usage)
        if report.metrics is not None:
            response["metrics"] = report.metrics
        return response

    def _response(
        self, status: str, output: list[Any], usage: Usage | None = None
    ) -> dict[str, Any]:
        incomplete = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            "id": self._identity.id,
            "object": "response",
            "created_at": self._identity.created,
            "model": self._identity.model,
            "status": status,
            "output": output,
            "usage": usage and _usage(usage),
            "error": None,
            "incomplete_details": incomplete,
            **self._asked,
        }


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached},
        "output_tokens": usage.completion,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt + usage.completion,
    }


def _asked(request: ResponsesRequest) -> dict[str, Any]:
    """What a response repeats of its request, and what it would if more were supported."""
    return {
        "instructions": request.instructions,
        "max_output_tokens": request.token_limit,
        "metadata": request.metadata or {},
        "temperature": 1.0 if request.temperature is None else request.temperature,
        "top_p": 1.0 if request.top_p is None else request.top_p,
        "top_logprobs": request.top_logprobs or 0,
        "tools": request.tools or [],
        "tool_choice": request.tool_choice or "auto",
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "text": {"format": (request.text and request.text.format) or {"type": "text"}},
        "truncation": request.truncation or "disabled",
        "user": request.user,
        "store": False,
        "background": False,
        "previous_response_id": None,
    }
