"""Stream frames as bytes: templates with the text escaped into them.

    data: {"id":…,"choices":[{"index":0,"delta":{"content":"Hel"},…}]}\\n\\n

Lines end with LF, and there is no `id:`, no `retry:` and no comment inside an event: clients in
the field split on "\\n\\n" and read nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import orjson

DONE = b"data: [DONE]\n\n"
KEEPALIVE = b": keepalive\n\n"


@dataclass(frozen=True, slots=True)
class Identity:
    """What every chunk of a reply repeats: the reply's id, when it was made, and by which model."""

    id: str
    created: int
    model: str


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a request; cached ones are prompt tokens that were not computed again (None: not
    told)."""

    prompt: int
    completion: int
    cached: int | None = 0

    def render(self) -> dict[str, Any]:
        details = None if self.cached is None else {"cached_tokens": self.cached}
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": details,
        }


@dataclass(frozen=True, slots=True)
class Extra:
    """Members that some clients ask for: of the choice in a chunk, and of the chunk itself."""

    choice: Mapping[str, Any] = field(default_factory=dict)
    chunk: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Style:
    """How an endpoint spells a chunk: the object name and what stands around a piece of text."""

    object: str
    first: bytes
    later: bytes
    close: bytes
    silent: bytes


CHAT_STYLE = Style(
    object="chat.completion.chunk",
    first=b'"delta":{"role":"assistant","content":',
    later=b'"delta":{"content":',
    close=b"}",
    silent=b'"delta":{}',
)
COMPLETION_STYLE = Style(
    object="text_completion", first=b'"text":', later=b'"text":', close=b"", silent=b'"text":""'
)


class Chunks:
    """The frames of one stream."""

    def __init__(self, style: Style, identity: Identity, *, usage: bool) -> None:
        """`usage`: the stream ends with a usage chunk, and until then chunks say `usage: null`."""
        self._style = style
        head = {
            "id": identity.id,
            "object": style.object,
            "created": identity.created,
            "model": identity.model,
            "system_fingerprint": None,
        }
        self._head = b"data: " + orjson.dumps(head)[:-1] + b',"choices":['
        self._usage = usage
        self._tail = b'}],"usage":null}\n\n' if usage else b"}]}\n\n"
        self._begins: dict[int, bytes] = {}
        """How later chunks of each sequence that has begun begin, up to their text."""
        self._plain_end = style.close + b',"logprobs":null' + _ending(None, None) + self._tail

    def plain(self, index: int, text: str) -> bytes:
        """`frame` of nothing but text, for a sequence that has begun: most of all frames."""
        return self._begins[index] + orjson.dumps(text) + self._plain_end

    def frame(
        self,
        index: int,
        text: str,
        *,
        logprobs: dict[str, Any] | None = None,
        finish_reason: str | None = None,
        stop_reason: str | int | None = None,
        usage: Usage | None = None,
        extra: Extra | None = None,
    ) -> bytes:
        """One chunk of sequence `index`; the first one of a chat also says who speaks."""
        opening = self._style.first if self._begin(index) else self._style.later
        said = b"".join((opening, orjson.dumps(text), self._style.close))
        return self._frame(index, said, logprobs, finish_reason, stop_reason, usage, extra)

    def delta(
        self,
        index: int,
        delta: Mapping[str, Any],
        *,
        logprobs: dict[str, Any] | None = None,
        finish_reason: str | None = None,
        stop_reason: str | int | None = None,
        usage: Usage | None = None,
        extra: Extra | None = None,
    ) -> bytes:
        """One chunk of a chat that adds several members to a message, or none."""
        if self._begin(index):
            delta = {"role": "assistant", "content": None, **delta}
        said = b'"delta":' + orjson.dumps(delta)
        return self._frame(index, said, logprobs, finish_reason, stop_reason, usage, extra)

    def _begin(self, index: int) -> bool:
        """Whether this is the first chunk of sequence `index`."""
        if index in self._begins:
            return False
        later = self._style.later
        self._begins[index] = b"".join((self._head, b'{"index":%d,' % index, later))
        return True

    def _frame(
        self,
        index: int,
        said: bytes,
        logprobs: dict[str, Any] | None,
        finish_reason: str | None,
        stop_reason: str | int | None,
        usage: Usage | None,
        extra: Extra | None,
    ) -> bytes:
        """A chunk around what is said."""
        ending = _ending(finish_reason, stop_reason)
        tail = self._tail
        if usage is not None or extra is not None:
            extra = extra or Extra()
            ending += _members(extra.choice)
            tail = self._tail_with(usage, extra.chunk)
        return b"".join(
            (
                self._head,
                b'{"index":%d,' % index,
                said,
                b',"logprobs":',
                b"null" if logprobs is None else orjson.dumps(logprobs),
                ending,
                tail,
            )
        )

    def _tail_with(self, usage: Usage | None, members: Mapping[str, Any]) -> bytes:
        if usage is not None:
            members = {**members, "usage": usage.render()}
        elif self._usage:
            members = {**members, "usage": None}
        return b"}]" + _members(members) + b"}\n\n"

    def opening(self, count: int) -> bytes:
        """Who speaks, for each of `count` sequences: what comes first if there are several.

        openai-python fails when it sees choice 1 before choice 0. Only a chat says who speaks.
        """
        if self._style.first == self._style.later:
            return b""
        return b"".join(self.frame(index, "") for index in range(count))

    def silence(self) -> bytes:
        """A chunk that adds nothing, for clients that count comments as silence."""
        ending = _ending(None, None)
        return b"".join(
            (
                self._head,
                b'{"index":0,',
                self._style.silent,
                b',"logprobs":null',
                ending,
                self._tail,
            )
        )

    def usage(self, usage: Usage, metrics: Mapping[str, Any] | None = None) -> bytes:
        """The last chunk where usage was asked for."""
        members: dict[str, Any] = {"usage": usage.render()}
        if metrics is not None:
            members["metrics"] = metrics
        return self._head + b"]" + _members(members) + b"}\n\n"


def error_event(body: bytes) -> bytes:
    """How a stream that has begun fails; `body` is the JSON that a response would have had."""
    return b"event: error\ndata: " + body + b"\n\n"


def completion_body(
    object: str,
    identity: Identity,
    choices: Sequence[dict[str, Any]],
    usage: Usage,
    extra: Mapping[str, Any] = MappingProxyType({}),
) -> bytes:
    """The body of a reply that is not streamed; extra: members that some clients ask for."""
    return orjson.dumps(
        {
            "id": identity.id,
            "object": object,
            "created": identity.created,
            "model": identity.model,
            "choices": choices,
            "usage": usage.render(),
            "system_fingerprint": None,
            **extra,
        }
    )


def _members(members: Mapping[str, Any]) -> bytes:
    """Further members of an object that has some already."""
    return b"," + orjson.dumps(members)[1:-1] if members else b""


def _ending(finish_reason: str | None, stop_reason: str | int | None) -> bytes:
    if finish_reason is None:
        return b',"finish_reason":null'
    return b',"finish_reason":%b,"stop_reason":%b' % (
        orjson.dumps(finish_reason),
        orjson.dumps(stop_reason),
    )
