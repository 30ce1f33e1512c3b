"""Notes in the records what the engine emits and decides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from engine.decisions import DecisionSink, no_log
from engine.outputs import Look, Output
from engine.simulation.records import Record


class Watch:
    """Sees all that happens to the requests of a run.

    log: gets the decisions too. tick: called once for every request that has ended.
    """

    def __init__(
        self, records: Sequence[Record], log: DecisionSink, tick: Callable[[], None]
    ) -> None:
        self._records = records
        self._log = log
        self._tick = tick

    def emitted(self, outputs: Sequence[Output], look: Look) -> None:
        """The engine's `Emit`."""
        records = self._records
        for output in outputs:
            record = records[output.request]
            if output.tokens:
                record.token_times.append(output.at)
            if output.timing is not None:
                record.admitted_at = output.timing.admitted
                record.cached_tokens = output.cached
            if output.finish is not None:
                if output.finish.failure is not None:
                    record.shed = output.finish.failure.kind.value
                self._tick()

    def decided(self, *entry: Any) -> None:
        """The scheduler's `DecisionSink`."""
        if self._log is not no_log:
            self._log(*entry)
        kind = entry[0]
        if kind == "admit":
            self._records[entry[1]].recomputed_tokens += entry[3]
        elif kind in ("preempt", "displace"):
            self._records[entry[1]].preemptions += 1
