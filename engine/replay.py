"""Requests through an engine in virtual time, as fast as this machine can."""

from __future__ import annotations

import math
from collections.abc import Iterable

from engine.clock import VirtualClock
from engine.inbox import Submission
from engine.loop import Engine


def replay(
    engine: Engine,
    clock: VirtualClock,
    submissions: Iterable[Submission],
    until: float = math.inf,
) -> None:
    """Let requests arrive, and step until all have ended, or until that time has come.

    The engine's backend advances `clock` while it computes; while nothing can be computed, time
    passes until somebody arrives or the engine wants to plan again. What arrives during a step is
    in the mail of the next one, as it is on the engine thread.

    submissions: in order of arrival; taken one by one when their time has come. until: no step
    begins from then on; the last one may end later. Raises ValueError if one arrives before its
    predecessor.
    """
    coming = iter(submissions)
    following = next(coming, None)
    while clock.now() < until:
        mail: list[Submission] = []
        while following is not None and following.arrival <= clock.now():
            mail.append(following)
            following = next(coming, None)
            if following is not None and following.arrival < mail[-1].arrival:
                raise ValueError(f"request {following.id} arrives before request {mail[-1].id}")
        if engine.step(mail):
            continue
        patience = engine.patience
        if patience is None and following is None:
            return
        wake = math.inf if patience is None else clock.now() + patience
        clock.advance_to(min(until, wake if following is None else min(wake, following.arrival)))
