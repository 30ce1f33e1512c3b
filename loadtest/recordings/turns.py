"""Rows of a recording as turns again (`app.recording.rows` writes them)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from app.recording.names import KEY_BYTES
from app.recording.rows import FIELDS
from engine.beam_search import BeamSearch
from engine.controls import RowControls
from engine.inbox import (
    Abort,
    Explain,
    FinishAt,
    Inspect,
    Message,
    PolicyName,
    Reconfigure,
    Stop,
    Submission,
)
from engine.limits import ClassLimits
from engine.recorder import PLAIN, Choice, Landed, Outcome, Turn
from loadtest.recordings.tokens import ENDS, RecordedGrammar

GRAMMAR: Final = RecordedGrammar()
_DIGITS: Final = 2 * KEY_BYTES


def turn_of(row: Mapping[str, Any]) -> Turn:
    """The turn of a row, without what was decided. Raises KeyError, TypeError or ValueError."""
    turn = Turn(list(map(_message, row.get("mail", ()))))
    turn.left = [each["left"] for each in row.get("mail", ()) if "abort" in each]
    turn.nows = row["now"]
    turn.landed = list(map(_landed, row.get("landed", ())))
    turn.refused = row.get("refused")
    turn.drafts = [((id, index), count) for id, index, count in row.get("drafts", ())]
    turn.waits = [(id, index) for id, index in row.get("waits", ())]
    turn.late = [(id, index) for id, index in row.get("late", ())]
    turn.keys = [((id, index), keys_of(keys)) for id, index, keys in row.get("keys", ())]
    turn.overruns = row.get("overruns", [])
    return turn


def limits_of(row: Mapping[str, Sequence[Any]]) -> dict[str, ClassLimits]:
    """Limits of classes by what stands for their names."""
    return {name: ClassLimits(*limits) for name, limits in row.items()}


def keys_of(digits: str) -> list[bytes]:
    """What stands for blocks, one by one."""
    return [bytes.fromhex(digits[i : i + _DIGITS]) for i in range(0, len(digits), _DIGITS)]


def _landed(row: Mapping[str, Any] | int) -> Landed:
    if isinstance(row, int):
        return PLAIN
    return Landed(
        [Outcome((id, index), *rest) for id, index, *rest in row.get("rows", ())],
        [Choice(*each) for each in row.get("chose", ())],
        row.get("lost"),
    )


def _message(row: Mapping[str, Any]) -> Message:
    match row:
        case {"request": _}:
            return _submission(row)
        case {"abort": id}:
            return Abort(id)
        case {"finish": id, "index": index, "tokens": tokens}:
            return FinishAt(id, index, tokens)
        case {"inspect": limit}:
            return Inspect(_unheard, limit)
        case {"explain": id, "limit": limit}:
            return Explain(_unheard, id, limit)
        case {"reconfigure": _}:
            return _reconfigure(row)
        case {"stop": _}:
            return Stop()
    raise ValueError(f"there is no such mail: {sorted(row)}")


def _unheard(answer: object) -> None:
    """Nobody waits for it any more."""


def _submission(row: Mapping[str, Any]) -> Submission:
    beams = row.get("beams")
    return Submission(
        id=row["request"],
        prompt=[0] * row["prompt"],
        max_tokens=row["max"],
        controls=_controls(row),
        arrival=row["at"],
        tenant=row["tenant"],
        slo_class=row["class"],
        beams=None if beams is None else BeamSearch(*beams),
        prompt_keys=keys_of(row.get("keys", "")),
        **dict(_fields(row)),
    )


def _fields(row: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for field, name in FIELDS.items():
        if name in row:
            yield field, math.inf if row[name] is None else row[name]


def _controls(row: Mapping[str, Any]) -> RowControls:
    """What of the controls scheduling depends on."""
    return RowControls(
        temperature=0.0,
        ignore_eos=True,
        stop_ids=frozenset({ENDS}),
        grammar=GRAMMAR if row.get("grammar") else None,
        prompt_logprobs=0 if row.get("scored") else None,
    )


def _reconfigure(row: Mapping[str, Any]) -> Reconfigure:
    """Its policy is still to be made; raises ValueError if nobody knows from what."""
    named, classes = row.get("policy"), row.get("classes")
    if "policy" in row and named is None:
        raise ValueError("a policy without a name was put in charge")
    return Reconfigure(
        classes=None if classes is None else limits_of(classes),
        named=None if named is None else PolicyName(*named),
    )
