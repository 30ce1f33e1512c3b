"""Requests through an engine on its own thread, in real time and open loop: no HTTP."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from app.compose import Core
from engine.inbox import Stop, Submission
from engine.outputs import Look, Output
from engine.simulation import NO_TARGETS, Record
from engine.thread import EngineThread
from loadtest.calibration.house import Prompts
from loadtest.machine import Unmeasured
from loadtest.traces import Arrival

PATIENCE_S: Final = 300.0
"""After the last arrival; then a run has failed."""


class LiveEngine:
    """Runs traces one after the other; the engine thread goes on between them.

    with LiveEngine(core) as live:
        records = live.run(arrivals)
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        core.engine.emit = self._emitted
        self._thread = EngineThread(core.engine)
        self._prompts = Prompts(core.model.vocab_size, seed=1)
        self._run: _Run | None = None

    def __enter__(self) -> LiveEngine:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._thread.post(Stop())
        self._thread.join()

    def run(self, arrivals: Sequence[Arrival]) -> list[Record]:
        """What became of the requests, times counted from the beginning of the run.

        Each is posted at its time, whatever the engine does, and counts as arrived then. Raises
        Unmeasured if they do not end.
        """
        prompts, clock = self._prompts, self._core.engine.clock
        mail = [prompts.submission(a.prompt_tokens, a.output_tokens, 0.0) for a in arrivals]
        records = [Record(each, NO_TARGETS) for each in arrivals]
        origin = clock.now() + 0.05
        self._run = run = _Run(dict(zip((s.id for s in mail), records, strict=True)), origin)
        for submission, arrival in zip(mail, arrivals, strict=True):
            self._post(submission, origin + arrival.at)
        if not run.over.wait(PATIENCE_S):
            raise Unmeasured("the engine did not end its requests in time")
        return records

    def _post(self, submission: Submission, due: float) -> None:
        left = due - self._core.engine.clock.now()
        if left > 0:
            time.sleep(left)
        self._thread.post(replace(submission, arrival=due))

    def _emitted(self, outputs: Sequence[Output], look: Look) -> None:
        if self._run is not None:
            self._run.emitted(outputs)


class _Run:
    """The requests of one run, by number. over: set when all have ended."""

    def __init__(self, records: dict[int, Record], origin: float) -> None:
        self._records = records
        self._origin = origin
        self._open = len(records)
        self.over = threading.Event()

    def emitted(self, outputs: Sequence[Output]) -> None:
        """On the engine thread."""
        for output in outputs:
            record = self._records[output.request]
            if output.tokens:
                record.token_times.append(output.at - self._origin)
            if output.timing is not None:
                record.admitted_at = output.timing.admitted - self._origin
            if output.finish is not None:
                if output.finish.failure is not None:
                    record.shed = output.finish.failure.kind.value
                self._open -= 1
        if not self._open:
            self.over.set()
