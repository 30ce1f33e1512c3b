"""Replies of /v1/responses: messages and calls of functions, as an object or as typed events."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import orjson

from app.choices import Choice, Piece
from app.chunks import Identity, Usage
from app.errors import ApiError
from app.logprobs import ChatLogprobs, Entry
from app.replies.base import Report
from app.replies.response_items import Event, ResponseItems
from app.schemas.responses import ResponsesRequest
from app.text.tokenizer import Tokenizer
from app.tools.calls import CallDelta, CallReader


class ResponseReply:
    """Spells one answer. Events are numbered from 0 on; a stream has no other end than its last.

    An answer that may call functions is told item by item, as it turns out what comes; any other
    is one message.
    """

    def __init__(
        self,
        request: ResponsesRequest,
        identity: Identity,
        tokenizer: Tokenizer,
        *,
        calls: bool = False,
    ) -> None:
        """calls: whether the answer may call functions."""
        self._identity = identity
        self._tokenizer = tokenizer
        self._logprobs = ChatLogprobs(tokenizer.token_bytes)
        self._wants_logprobs = request.alternatives is not None
        self._asked = _asked(request)
        self._reader = CallReader() if calls else None
        self._items = ResponseItems(identity.id.removeprefix("resp_"))
        self._blanks = ""
        """What may become the beginning of a message; in front of a call it says nothing."""
        self._entries: list[Entry] = []
        """Of tokens whose text has not been said."""
        self._next = 0
        self._cut = False

    def whole(self, choices: Sequence[tuple[Choice, Piece]], report: Report) -> bytes:
        ((_, piece),) = choices
        self._take(piece)
        self._finish()
        return orjson.dumps(self._ended(report))

    # ---------------------------------------------------------------- piece by piece

    def begin(self) -> bytes:
        told = {"response": self._response("in_progress", [])}
        events: list[Event] = [("created", told), ("in_progress", told)]
        if self._reader is None:
            events += self._items.open_message()
        return self._spell(events)

    def add(self, choice: Choice, piece: Piece) -> bytes:
        return self._spell(self._take(piece))

    def silence(self) -> bytes:
        return self._spell([("in_progress", {"response": self._response("in_progress", [])})])

    def end(self, report: Report) -> bytes:
        events = self._finish()
        response = self._ended(report)
        return self._spell([*events, (response["status"], {"response": response})])

    def fail(self, error: ApiError) -> bytes:
        told = orjson.loads(error.body())["error"]
        names = {name: told[name] for name in ("code", "message", "param")}
        return self._event("error", {**names, "error": told})

    # ---------------------------------------------------------------- what is said

    def _take(self, piece: Piece) -> list[Event]:
        """What a piece adds."""
        last = piece.finish_reason is not None
        self._cut = piece.finish_reason == "length"
        if self._wants_logprobs:
            self._entries += piece.entries
        if self._reader is None:
            return self._items.say(piece.text, self._rendered(self._entries))
        events: list[Event] = []
        for part in self._reader.feed(piece.text, last).parts:
            events += self._called(part) if isinstance(part, CallDelta) else self._said(part)
        return events

    def _said(self, text: str) -> list[Event]:
        text = self._blanks + text
        if not self._items.in_message and not text.strip():
            self._blanks = text
            return []
        self._blanks = ""
        return self._items.say(text, self._rendered(self._behind(text)))

    def _called(self, delta: CallDelta) -> list[Event]:
        """Tokens of a call have no log-probabilities: there is no place for them."""
        self._blanks = ""
        self._entries.clear()
        return self._items.call(delta)

    def _finish(self) -> list[Event]:
        """What is left to say once nothing more comes. An answer of nothing is a message."""
        events: list[Event] = []
        if not self._items or (self._items.in_message and self._entries):
            events = self._items.say(self._blanks, self._rendered(self._entries))
        within = self._reader is not None and self._reader.within
        return events + self._items.end("incomplete" if self._cut or within else "completed")

    def _behind(self, text: str) -> list[Entry]:
        """The entries of the tokens that a text is of, the first that wait."""
        size = len(text.encode("utf-8", "replace"))
        count = 0
        while size > 0 and count < len(self._entries):
            token = self._entries[count][0]
            if not self._tokenizer.is_control(token):
                size -= len(self._tokenizer.token_bytes(token))
            count += 1
        taken = self._entries[:count]
        del self._entries[:count]
        return taken

    def _rendered(self, entries: list[Entry]) -> list[Any]:
        """Entries as they are told, each once."""
        if not self._wants_logprobs:
            return []
        content: list[Any] = self._logprobs.render(entries)["content"]
        entries.clear()
        return content

    # ---------------------------------------------------------------- how it is spelled

    def _spell(self, events: Iterable[Event]) -> bytes:
        return b"".join(self._event(f"response.{kind}", members) for kind, members in events)

    def _event(self, kind: str, members: dict[str, Any]) -> bytes:
        data = orjson.dumps({"type": kind, "sequence_number": self._next, **members})
        self._next += 1
        return b"event: " + kind.encode() + b"\ndata: " + data + b"\n\n"

    def _ended(self, report: Report) -> dict[str, Any]:
        status = "incomplete" if self._cut else "completed"
        response = self._response(status, self._items.spelled(), report.usage)
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
        "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
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
        "tools": [tool.model_dump(exclude_unset=True) for tool in request.tools or ()],
        "tool_choice": request.tool_choice or "auto",
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "text": {"format": (request.text and request.text.format) or {"type": "text"}},
        "truncation": request.truncation or "disabled",
        "user": request.user,
        "store": False,
        "background": False,
        "previous_response_id": None,
    }
