"""Whether the engine thread is stuck: a step in progress is older than any step should become."""

from __future__ import annotations

import logging
import math

from engine.outputs import Failure, FailureKind
from engine.thread import EngineThread

log = logging.getLogger("octavo.bridge")

RETRY_AFTER_S = 5.0


class StepWatch:
    """Looks at the age of the step in progress. A long prompt is many steps, each of them young.

    stuck_after_s: the age from which the thread counts as stuck; None: it never does.
    """

    def __init__(self, stuck_after_s: float | None) -> None:
        self._most = math.inf if stuck_after_s is None else stuck_after_s
        self._told = False

    def stuck(self, thread: EngineThread) -> Failure | None:
        """Why the thread cannot be counted on, or None. Logs once a time where it is stuck."""
        age = thread.step_age
        if age <= self._most:
            self._told = False
            return None
        if not self._told:
            self._told = True
            log.error("the engine is stuck in a step of %.0f s so far, at\n%s", age, thread.stack)
        message = f"the engine is stuck: the step in progress has taken {age:.0f} s so far"
        return Failure(FailureKind.NOT_READY, message, RETRY_AFTER_S)
