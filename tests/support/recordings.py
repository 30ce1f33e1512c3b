"""Record what an engine is given in a test, and decide it again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import orjson

from app.recording.names import Names
from app.recording.rows import limits_of as hidden_limits
from app.recording.rows import row_of
from engine.inbox import PolicyName
from engine.recorder import Recorder, Turn
from loadtest.recordings.house import RecordedHouse
from loadtest.recordings.outside import Recorded
from loadtest.recordings.turns import limits_of, turn_of
from policies.base import Policy
from support.engines import Harness


class Tape:
    """Keeps turns as the lines that files have."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.names = Names()
        self.recorder = Recorder(self._take)

    def _take(self, turn: Turn) -> None:
        self.lines.append(orjson.dumps(row_of(turn, self.names)))

    @property
    def turns(self) -> Sequence[Turn]:
        """What was kept, read again."""
        return [turn_of(orjson.loads(line)) for line in self.lines]


def decide_again(
    tape: Tape, make_policy: Callable[[PolicyName], Policy], **settings: Any
) -> Harness:
    """What the turns of a tape make an engine with the same settings decide.

    The backend, its script and its guesses are those of the tape; `settings` need not name them.
    """
    blocks, host_blocks = settings.get("blocks", 64), settings.pop("host_blocks", 0)
    recorded = Recorded(blocks, host_blocks, settings.pop("move_seconds", 0.0))
    if settings.get("classes"):
        settings["classes"] = limits_of(hidden_limits(settings["classes"], tape.names))
    if settings.get("drafter") is not None:
        settings["drafter"] = recorded
    harness = Harness(backend=recorded, outside=recorded, cpu_clock=recorded.cpu_time, **settings)
    harness.engine.clock = recorded
    recorded.scheduler = harness.scheduler
    house = RecordedHouse(harness.engine, recorded, make_policy)
    for turn in tape.turns:
        house.play(turn)
        harness.scheduler.check()
    return harness
