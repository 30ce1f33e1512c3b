"""Mooncake's trace format: a JSON object a line, prompts as names of blocks of 512 tokens.

    {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, ...]}

timestamp: milliseconds. hash_ids: one for each 512 tokens of the prompt, the last of which may be
fewer; equal ids stand for equal tokens behind an equal beginning
(https://github.com/kvcache-ai/Mooncake, the traces of the FAST '25 paper).
"""

from __future__ import annotations

import json
from typing import Any, Final

from engine.simulation.arrival import Arrival, Prefix

BLOCK_TOKENS: Final = 512


def arrival_of(line: str) -> Arrival:
    """The request of a line. Raises ValueError for a line that is none."""
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"is no JSON: {error.msg}") from None
    if not isinstance(row, dict):
        raise ValueError("expected an object with timestamp, input_length and output_length")
    milliseconds = row.get("timestamp")
    if isinstance(milliseconds, bool) or not isinstance(milliseconds, int | float):
        raise ValueError(f"timestamp: expected milliseconds, got {milliseconds!r}")
    return Arrival(
        at=milliseconds / 1000,
        prompt_tokens=_integer(row, "input_length"),
        output_tokens=_integer(row, "output_length"),
        prefix=_prefix(row.get("hash_ids")),
    )


def _prefix(names: Any) -> Prefix | None:
    if not names:
        return None
    if not isinstance(names, list) or not all(type(name) is int for name in names):
        raise ValueError("hash_ids: expected a list of integers")
    return Prefix(tuple(names), BLOCK_TOKENS)


def _integer(row: dict[str, Any], key: str) -> int:
    value = row.get(key)
    if type(value) is not int:
        raise ValueError(f"{key}: expected an integer, got {value!r}")
    return value
