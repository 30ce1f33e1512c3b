"""What is compared: something that requests can be sent to, simulated or real."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from engine.simulation import Record
from engine.simulation.residuals import Residuals
from engine.simulation.usage import Usage
from loadtest.ab.noise import CommonNoise, log_normal
from loadtest.houses import House
from loadtest.metrics import report
from loadtest.traces import Arrival
from policies.base import Policy
from policies.static_batch import StaticBatch


class Arm(Protocol):
    """A policy, or a whole configuration, under its name."""

    @property
    def name(self) -> str: ...

    def run(
        self, arrivals: Sequence[Arrival], seed: int
    ) -> tuple[Mapping[str, Any], Sequence[Record]]:
        """The report of a run, and what became of its requests in order of arrival."""
        ...


@dataclass(frozen=True, slots=True)
class SimulatedArm:
    """A configuration in virtual time. Can be sent to another process.

    noise: names the stream of its steps' scatter; arms that are to scatter alike have the same.
    """

    name: str
    house: House
    noise: str = "common"

    def run(
        self, arrivals: Sequence[Arrival], seed: int
    ) -> tuple[dict[str, Any], Sequence[Record]]:
        """As `Arm` says; the same arguments give the same figures."""
        usage = Usage()
        run = self.house.simulate(arrivals, seed=seed, scatter=self._scatter(seed), usage=usage)
        wasted = {"wasted_rows": wasted_rows(run.policy)}
        return {**report(run), **usage.report(), **wasted}, run.records

    def _scatter(self, seed: int) -> CommonNoise | None:
        """How its steps scatter: as its machine's do."""
        noise, stream = self.house.machine.noise, f"{self.noise} {seed}"
        if not noise:
            return None
        draw = noise.draw(stream) if isinstance(noise, Residuals) else log_normal(noise)
        return CommonNoise(draw, stream)


def wasted_rows(policy: Policy) -> float:
    """The part of a static batch's rows that pads it: of sequences that have ended, computed until
    the longest has. The engine computes none of them, and other policies have none."""
    if not isinstance(policy, StaticBatch):
        return 0.0
    totals = policy.export()["static_batch"]
    return 1 - totals["rows"] / totals["padded_rows"] if totals["padded_rows"] else 0.0
