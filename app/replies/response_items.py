"""The items of a response: messages and calls, and the events that tell of them."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from app.tools.calls import CallDelta

Event: TypeAlias = tuple[str, dict[str, Any]]
"""The kind of an event, without `response.` in front, and its members."""

Status: TypeAlias = Literal["in_progress", "completed", "incomplete"]


class MessageItem:
    """A message of one text."""

    def __init__(self, item_id: str, index: int) -> None:
        self._id, self._index = item_id, index
        self._here = {"item_id": item_id, "output_index": index, "content_index": 0}
        self._text: list[str] = []
        self._logprobs: list[Any] = []

    def begin(self) -> list[Event]:
        item = self._spelled("in_progress", [])
        return [
            ("output_item.added", {"output_index": self._index, "item": item}),
            ("content_part.added", {**self._here, "part": _part("", [])}),
        ]

    def add(self, text: str, logprobs: list[Any]) -> Event:
        self._text.append(text)
        self._logprobs += logprobs
        return "output_text.delta", {**self._here, "delta": text, "logprobs": logprobs}

    def end(self, status: Status) -> list[Event]:
        item = self.spelled(status)
        (part,) = item["content"]
        said = {"text": part["text"], "logprobs": part["logprobs"]}
        return [
            ("output_text.done", {**self._here, **said}),
            ("content_part.done", {**self._here, "part": part}),
            ("output_item.done", {"output_index": self._index, "item": item}),
        ]

    def spelled(self, status: Status) -> dict[str, Any]:
        """The whole item."""
        return self._spelled(status, [_part("".join(self._text), self._logprobs)])

    def _spelled(self, status: Status, content: list[Any]) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "message",
            "status": status,
            "role": "assistant",
            "content": content,
        }


class CallItem:
    """A call of a function."""

    def __init__(self, item_id: str, index: int, call: CallDelta) -> None:
        """call: what begins it."""
        self._id, self._index = item_id, index
        self._here = {"item_id": item_id, "output_index": index}
        self._call = call
        self._arguments: list[str] = []

    def begin(self) -> list[Event]:
        item = self.spelled("in_progress")
        return [("output_item.added", {"output_index": self._index, "item": item})]

    def add(self, arguments: str) -> Event:
        self._arguments.append(arguments)
        return "function_call_arguments.delta", {**self._here, "delta": arguments}

    def end(self, status: Status) -> list[Event]:
        item = self.spelled(status)
        told = {"name": item["name"], "arguments": item["arguments"]}
        return [
            ("function_call_arguments.done", {**self._here, **told}),
            ("output_item.done", {"output_index": self._index, "item": item}),
        ]

    def spelled(self, status: Status) -> dict[str, Any]:
        """The whole item."""
        return {
            "id": self._id,
            "type": "function_call",
            "status": status,
            "call_id": self._call.id,
            "name": self._call.name,
            "arguments": "".join(self._arguments),
        }


class ResponseItems:
    """The items of one response. The last one is open until another begins, or all ends."""

    def __init__(self, response: str) -> None:
        """response: the id of the response, without its prefix."""
        self._response = response
        self._items: list[MessageItem | CallItem] = []
        self._status: Status = "in_progress"

    def __len__(self) -> int:
        return len(self._items)

    @property
    def in_message(self) -> bool:
        """Whether the open item is a message."""
        return bool(self._items) and isinstance(self._items[-1], MessageItem)

    def open_message(self) -> list[Event]:
        """Begin a message, unless one is open."""
        if self.in_message:
            return []
        return self._open(MessageItem(self._id("msg"), len(self._items)))

    def say(self, text: str, logprobs: list[Any]) -> list[Event]:
        """Go on with the message that is open, or with another."""
        events = self.open_message()
        message = self._items[-1]
        assert isinstance(message, MessageItem)
        return [*events, message.add(text, logprobs)]

    def call(self, delta: CallDelta) -> list[Event]:
        """Begin a call, or go on with it."""
        events: list[Event] = []
        if delta.name is not None:
            events = self._open(CallItem(self._id("fc"), len(self._items), delta))
        call = self._items[-1]
        assert isinstance(call, CallItem)
        return [*events, call.add(delta.arguments)] if delta.arguments else events

    def end(self, status: Status) -> list[Event]:
        """Nothing follows. status: of the last item."""
        self._status = status
        return self._items[-1].end(status)

    def spelled(self) -> list[dict[str, Any]]:
        """The output of the response."""
        *before, last = self._items
        return [*(item.spelled("completed") for item in before), last.spelled(self._status)]

    def _open(self, item: MessageItem | CallItem) -> list[Event]:
        events = self._items[-1].end("completed") if self._items else []
        self._items.append(item)
        return events + item.begin()

    def _id(self, prefix: str) -> str:
        number = f"_{len(self._items)}" if self._items else ""
        return f"{prefix}_{self._response}{number}"


def _part(text: str, logprobs: list[Any]) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}
