"""What clients ask for and what they make of the answer, on both endpoints and in both modes."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from support.serving import CHAT, COMPLETIONS, HELLO, House, chunks, until

PROMPT = "Say"


def asking(path: str, **fields: Any) -> dict[str, Any]:
    """A greedy request to an endpoint of choices; `fields` add to it or replace."""
    source: dict[str, Any] = {"messages": HELLO} if path == CHAT else {"prompt": PROMPT}
    return {**source, "temperature": 0, "max_tokens": 100, **fields}


async def answer(house: House, path: str, **fields: Any) -> Answer:
    """Ask, and read the answer whole."""
    reply = await house.post(path, asking(path, **fields))
    assert reply.status_code == 200, reply.text
    return read(path, reply)


class Answer(NamedTuple):
    """The first choice of a reply. deltas: its text, as it came; usage: None if it was not told."""

    deltas: list[str]
    finish_reason: str | None
    usage: dict[str, Any] | None

    @property
    def text(self) -> str:
        return "".join(self.deltas)


def read(path: str, reply: Any) -> Answer:
    """The answer in a reply, streamed or not."""
    if not reply.headers["content-type"].startswith("text/event-stream"):
        body = reply.json()
        choice = body["choices"][0]
        return Answer([_said(path, choice)], choice["finish_reason"], body["usage"])
    deltas, reason, usage = [], None, None
    for chunk in chunks(reply.content):
        usage = chunk.get("usage") or usage
        for choice in chunk["choices"]:
            if choice["index"] == 0:
                deltas.append(_said(path, choice))
                reason = choice["finish_reason"] or reason
    return Answer(deltas, reason, usage)


def _said(path: str, choice: dict[str, Any]) -> str:
    if path != CHAT:
        return choice["text"]
    return choice.get("message", choice.get("delta", {})).get("content") or ""


def gauge(page: str, name: str) -> float:
    """The value of one series on a page of metrics, by its name and labels as they stand there."""
    (value,) = [
        line.rpartition(" ")[2] for line in page.splitlines() if line.startswith(f"{name} ")
    ]
    return float(value)


class Event(NamedTuple):
    """An event as a browser would dispatch it."""

    kind: str
    data: str

    @property
    def json(self) -> Any:
        return json.loads(self.data)


def dispatched(raw: bytes) -> list[Event]:
    """The events of a stream, read to the letter of WHATWG HTML, section 9.2.6."""
    events: list[Event] = []
    kind, data = "", []
    text = raw.decode("utf-8", "strict").removeprefix("\ufeff")
    *lines, rest = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    assert rest == "", "an event that was cut short is never dispatched"
    for line in lines:
        if not line:
            if data:
                events.append(Event(kind or "message", "\n".join(data)))
            kind, data = "", []
        elif not line.startswith(":"):
            field, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if field == "data":
                data.append(value)
            elif field == "event":
                kind = value
            else:
                assert field == "", f"a field that nobody needs: {field}"
    return events


async def at_once(
    house: House, gate: threading.Event, bodies: Sequence[Mapping[str, Any]]
) -> list[Any]:
    """The replies to completions that arrive in this order, and all before the engine begins.

    gate: what the engine waits at before its first step.
    """
    asked = []
    for body in bodies:
        asked.append(asyncio.ensure_future(house.post(COMPLETIONS, body)))
        await until(lambda: house.bridge.open_requests == len(asked))
    gate.set()
    return [await each for each in asked]
