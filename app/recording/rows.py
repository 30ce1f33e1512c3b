"""A turn of the engine as a row of a recording: lengths and hashes, no text and no token ids.

    {"now": [...], "landed": [0], "mail": [{"request": 7, "prompt": 120, ...}], ...}

What is empty is left out. `loadtest.recordings.turns` reads it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, Final, TypeAlias

from app.recording.names import Names
from engine.inbox import Abort, Explain, FinishAt, Inspect, Message, Reconfigure, Stop, Submission
from engine.limits import ClassLimits
from engine.recorder import PLAIN, Landed, Turn

Row: TypeAlias = dict[str, Any]

FIELDS: Final = {
    "n": "n",
    "priority": "priority",
    "weight": "weight",
    "ttft_deadline": "due",
    "queue_deadline": "leaves",
    "tpot_target": "tpot",
}
"""Fields of a submission that are written where they are not the default, and their names."""

DEFAULTS: Final = {each.name: each.default for each in fields(Submission)}


def row_of(turn: Turn, names: Names) -> Row:
    """The turn without what it decided."""
    row: Row = {"now": turn.nows}
    if turn.landed:
        row["landed"] = [_landed(each) for each in turn.landed]
    if turn.mail:
        row["mail"] = list(_mail(turn, names))
    if turn.refused is not None:
        row["refused"] = turn.refused
    if turn.drafts:
        row["drafts"] = [(*name, count) for name, count in turn.drafts]
    if turn.waits:
        row["waits"] = turn.waits
    if turn.late:
        row["late"] = turn.late
    if turn.keys:
        row["keys"] = [(*name, names.keys(keys)) for name, keys in turn.keys]
    if turn.overruns:
        row["overruns"] = turn.overruns
    return row


def limits_of(classes: Mapping[str, ClassLimits], names: Names) -> Row:
    """Limits of classes, in the order of `ClassLimits`."""
    return {
        names.name(name): (each.max_running, each.max_waiting, each.max_blocks_fraction)
        for name, each in classes.items()
    }


def _landed(landed: Landed) -> Row | int:
    if landed is PLAIN:
        return 0
    row: Row = {}
    if landed.outcomes:
        row["rows"] = [(*o.name, o.landed, o.end, o.generated) for o in landed.outcomes]
    if landed.choices:
        row["chose"] = [(each.request, each.parents, each.stops) for each in landed.choices]
    if landed.lost is not None:
        row["lost"] = landed.lost
    return row


def _mail(turn: Turn, names: Names) -> Iterator[Row]:
    left: Iterator[Sequence[int]] = iter(turn.left)
    for message in turn.mail:
        row = _message(message, names)
        if isinstance(message, Abort):
            row["left"] = next(left)
        yield row


def _message(message: Message, names: Names) -> Row:
    match message:
        case Submission():
            return _submission(message, names)
        case Abort():
            return {"abort": message.id}
        case FinishAt():
            return {"finish": message.id, "index": message.index, "tokens": message.tokens}
        case Inspect():
            return {"inspect": message.limit}
        case Explain():
            return {"explain": message.id, "limit": message.limit}
        case Reconfigure():
            return _reconfigure(message, names)
        case Stop():
            return {"stop": True}


def _submission(submission: Submission, names: Names) -> Row:
    controls = submission.controls
    row: Row = {
        "request": submission.id,
        "prompt": len(submission.prompt),
        "max": submission.max_tokens,
        "at": submission.arrival,
        "tenant": names.name(submission.tenant),
        "class": names.name(submission.slo_class),
    }
    for field, name in FIELDS.items():
        value = getattr(submission, field)
        if value != DEFAULTS[field]:
            row[name] = value if math.isfinite(value) else None
    if submission.prompt_keys:
        row["keys"] = names.keys(submission.prompt_keys)
    if (beams := submission.beams) is not None:
        row["beams"] = (beams.width, beams.length_penalty, beams.early_stopping)
    if controls.grammar is not None:
        row["grammar"] = True
    if controls.prompt_logprobs is not None:
        row["scored"] = True
    return row


def _reconfigure(message: Reconfigure, names: Names) -> Row:
    row: Row = {"reconfigure": True}
    if message.policy is not None:
        named = message.named
        row["policy"] = None if named is None else [named.name, names.params(named.params)]
    if message.classes is not None:
        row["classes"] = limits_of(message.classes, names)
    return row
