"""A streamed completion as a client reads it: when each chunk came, and how it ended."""

from __future__ import annotations

from array import array
from typing import Any

import orjson

DONE = b"[DONE]"


class Stream:
    """Reads the events of a reply, or its error.

    A chunk is an event with choices: the one with usage alone is none, and neither is the end.
    Several that came in one read came at the same time.
    """

    def __init__(self) -> None:
        self.chunk_times = array("d")
        self.usage: dict[str, Any] = {}
        self.metrics: dict[str, Any] = {}
        self.error: str | None = None
        self.done = False
        self._rest = b""

    def take(self, piece: bytes, at: float) -> None:
        """Read on; `at`: when the piece came."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                self._event(line[5:].strip(), at)

    def fail(self, status: int) -> None:
        """The reply was no stream: read its error, whose code is the status where it has none."""
        try:
            code = orjson.loads(self._rest)["error"]["code"]
        except (ValueError, LookupError, TypeError):
            code = None
        self.error = str(code) if code else f"http_{status}"

    def _event(self, data: bytes, at: float) -> None:
        if data == DONE:
            self.done = True
            return
        try:
            event = orjson.loads(data)
        except ValueError:
            self.error = "invalid_event"
            return
        if error := event.get("error"):
            code = error.get("code") if isinstance(error, dict) else None
            self.error = str(code or "error")
        if event.get("choices"):
            self.chunk_times.append(at)
        self.usage = event.get("usage") or self.usage
        self.metrics = event.get("metrics") or self.metrics
