"""Chat completions whose answers may call tools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from app.choices import Choice, Piece
from app.replies.choices import ChoicesReply
from app.tools.calls import CallDelta, CallReader, Said


class ToolsReply(ChoicesReply):
    """Tells what is said from what is called. reason: why an answer ended that called something."""

    reason = "tool_calls"

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._readers: dict[int, CallReader] = {}

    def _choice(self, choice: Choice, piece: Piece) -> dict[str, Any]:
        spelled = super()._choice(choice, piece)
        reader = CallReader()
        said = reader.feed(piece.text, last=True)
        message = spelled["message"]
        text = self._prompts[choice.prompt].echo + said.text
        message["content"] = text if text.strip() or not reader.calls else None
        if reader.calls:
            message |= self._told(said.calls)
            spelled["finish_reason"] = self._finish(reader, piece)
        return spelled

    def add(self, choice: Choice, piece: Piece) -> bytes:
        reader = self._readers.setdefault(choice.index, CallReader())
        said = reader.feed(piece.text, last=piece.finish_reason is not None)
        delta = self._delta(choice, said)
        wishes = self._wishes
        usage = self._usage_so_far(piece) if wishes.running_usage else None
        first = choice.index not in self._begun
        if not (delta or piece.finish_reason or wishes.logprobs or wishes.token_ids):
            return b""
        self._begun.add(choice.index)
        return self._chunks.delta(
            choice.index,
            delta,
            logprobs=self._render_logprobs(choice, piece) if wishes.logprobs else None,
            finish_reason=self._finish(reader, piece),
            stop_reason=piece.stop_reason,
            usage=usage,
            extra=self._token_ids(choice, piece, first) if wishes.token_ids else None,
        )

    def _delta(self, choice: Choice, said: Said) -> dict[str, Any]:
        """What a piece adds to the message of a choice."""
        text = said.text
        if choice.index not in self._begun:
            text = self._prompts[choice.prompt].echo + text
        delta: dict[str, Any] = {"content": text} if text else {}
        if said.calls:
            delta |= self._added(said.calls)
        return delta

    def _finish(self, reader: CallReader, piece: Piece) -> str | None:
        """Why an answer ended; one that called something ended for that."""
        natural = piece.finish_reason == "stop" and piece.stop_reason is None
        return self.reason if natural and reader.calls else piece.finish_reason

    def _told(self, deltas: Sequence[CallDelta]) -> dict[str, Any]:
        """The member of a message for what was called."""
        return {"tool_calls": _whole(deltas)}

    def _added(self, deltas: Sequence[CallDelta]) -> dict[str, Any]:
        """The member of a delta for what is added to calls: each of them once.

        Clients put together what chunks add to a call, and not what one chunk adds to it twice.
        """
        return {"tool_calls": [_spelled(delta) for delta in _merged(deltas)]}


class FunctionsReply(ToolsReply):
    """The same for `functions`, of which an answer calls one."""

    reason = "function_call"

    def _told(self, deltas: Sequence[CallDelta]) -> dict[str, Any]:
        return {"function_call": _whole(deltas)[0]["function"]}

    def _added(self, deltas: Sequence[CallDelta]) -> dict[str, Any]:
        added = {"arguments": "".join(delta.arguments for delta in deltas)}
        if deltas[0].name is not None:
            added["name"] = deltas[0].name
        return {"function_call": added}


def _merged(deltas: Sequence[CallDelta]) -> list[CallDelta]:
    """One for each call, with all that is added to its arguments."""
    merged: dict[int, CallDelta] = {}
    for delta in deltas:
        before = merged.get(delta.index)
        if before is None:
            merged[delta.index] = delta
        else:
            arguments = before.arguments + delta.arguments
            merged[delta.index] = replace(before, arguments=arguments)
    return list(merged.values())


def _spelled(call: CallDelta) -> dict[str, Any]:
    function = {"arguments": call.arguments}
    if call.name is None:
        return {"index": call.index, "function": function}
    return {
        "index": call.index,
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, **function},
    }


def _whole(deltas: Sequence[CallDelta]) -> list[dict[str, Any]]:
    """Calls in full, from all that was said of them."""
    calls: list[dict[str, Any]] = []
    for delta in deltas:
        if delta.name is not None:
            function = {"name": delta.name, "arguments": ""}
            calls.append({"id": delta.id, "type": "function", "function": function})
        calls[-1]["function"]["arguments"] += delta.arguments
    return calls
