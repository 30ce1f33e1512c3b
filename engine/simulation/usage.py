"""How full the machine was: requests that ran at once, KV memory held, and held for nothing."""

from __future__ import annotations

from dataclasses import dataclass

from engine.batch import BLOCK
from engine.outputs import Look
from engine.scheduler import Scheduler


@dataclass(slots=True)
class Usage:
    """Sums over steps, each weighted with the seconds that it took; idle time counts for nothing.

    running: requests; held: tokens of KV memory in their block tables; empty: those of them that
    hold no token yet.
    """

    seconds: float = 0.0
    running: float = 0.0
    held: float = 0.0
    empty: float = 0.0

    def after(self, scheduler: Scheduler, look: Look) -> None:
        """Take a step in; called after each."""
        seconds = look().step_seconds
        if not seconds:
            return
        requests = scheduler.roster.running.values()
        tables = [(len(s.table), s.computed) for r in requests for s in r.open_sequences]
        self.seconds += seconds
        self.running += seconds * len(requests)
        self.held += seconds * BLOCK * sum(blocks for blocks, _ in tables)
        self.empty += seconds * sum(blocks * BLOCK - computed for blocks, computed in tables)

    def report(self) -> dict[str, float | None]:
        """Means over the time in which something was computed, by name."""
        return {
            "running": self.running / self.seconds if self.seconds else None,
            "held_kv_tokens": self.held / self.seconds if self.seconds else None,
            "wasted_kv": self.empty / self.held if self.held else None,
        }
