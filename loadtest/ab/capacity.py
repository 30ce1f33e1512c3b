"""How fast a trace may arrive: load in parts of what the first arm computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from loadtest.ab.arms import Arm
from loadtest.ab.workload import Workload
from loadtest.traces import Arrival, at_speed


@dataclass(frozen=True, slots=True)
class Capacity:
    """Can be sent to another process."""

    arm: Arm
    arrivals: Sequence[Arrival]
    workload: Workload

    def speed(self) -> float:
        """How many times as fast the trace arrives when it arrives as fast as it is computed.

        That is its span, over the time in which all of it is computed that is there at once; with
        as many of the workload's requests at fixed times as come meanwhile.
        """
        span = self.arrivals[-1].at
        speed = span / self._seconds(self.arrivals)
        if self.workload.beside is None:
            return speed
        return span / self._seconds(self.workload.joined(list(at_speed(self.arrivals, speed))))

    def _seconds(self, arrivals: Sequence[Arrival]) -> float:
        at_once = [replace(arrival, at=0.0) for arrival in arrivals]
        return float(self.arm.run(at_once, 0)[0]["duration_s"])
