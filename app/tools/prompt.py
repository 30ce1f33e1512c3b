"""How tools, calls and their results stand in a prompt.

A template that knows `tools` and writes `<tool_call>` does it itself. For any other the definitions
are put at the end of the system's turn, calls are lines of the assistant's, and results are a
user's:

    <tool_call>                                       <tool_response>
    {"name": "add", "arguments": {"a": 1, "b": 2}}    3
    </tool_call>                                      </tool_response>
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import orjson

from app.schemas.chat import ChatMessage
from app.tools.toolbox import CLOSING, OPENING, Toolbox

BEFORE: Final = """\
# Tools

You may call one or more of these functions to assist with the user's query:
<tools>
"""
AFTER: Final = f"""
</tools>

For each call write a JSON object with the function's name and its arguments between these tags:
{OPENING}
{{"name": <function-name>, "arguments": <arguments-as-json-object>}}
{CLOSING}"""

RESULTS: Final = ("tool", "function")
"""Roles of who says what a call gave."""


def turns_for(messages: Sequence[ChatMessage], box: Toolbox | None, native: bool) -> list[Any]:
    """A chat's turns as its template reads them. native: the template knows tools itself."""
    if native:
        return [_native(message) for message in messages]
    turns: list[dict[str, Any]] = []
    for message in messages:
        turn = _plain(message)
        result = message.role in RESULTS
        if result and turns and turns[-1]["result"]:
            turns[-1]["content"] += "\n" + turn["content"]
        else:
            turns.append({**turn, "result": result})
    if box is not None:
        _offer(turns, box)
    return [{"role": turn["role"], "content": turn["content"]} for turn in turns]


def _native(message: ChatMessage) -> dict[str, Any]:
    turn: dict[str, Any] = dict(message.for_template())
    if calls := message.calls:
        turn["tool_calls"] = calls
    if turn["role"] == "tool" and isinstance(message.tool_call_id, str):
        turn["tool_call_id"] = message.tool_call_id
    return turn


def _plain(message: ChatMessage) -> dict[str, str]:
    turn = message.for_template()
    if message.role in RESULTS:
        return {
            "role": "user",
            "content": f"<tool_response>\n{turn['content']}\n</tool_response>",
        }
    lines = [turn["content"]] if turn["content"] else []
    for call in message.calls:
        told = orjson.dumps(call["function"]["arguments"]).decode()
        name = call["function"]["name"]
        lines.append(f'{OPENING}\n{{"name": "{name}", "arguments": {told}}}\n{CLOSING}')
    return {"role": turn["role"], "content": "\n".join(lines)}


def _offer(turns: list[dict[str, Any]], box: Toolbox) -> None:
    """Put the definitions into the system's turn, which comes first."""
    listed = "\n".join(orjson.dumps(each).decode() for each in box.definitions)
    text = BEFORE + listed + AFTER
    if turns and turns[0]["role"] == "system":
        turns[0]["content"] = f"{turns[0]['content']}\n\n{text}"
    else:
        turns.insert(0, {"role": "system", "content": text})
