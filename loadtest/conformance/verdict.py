"""The verdict on a policy: for each invariant whether it kept it, or the engine did."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from loadtest.conformance.invariants import INVARIANTS


@dataclass(frozen=True, slots=True)
class Example:
    """The first thing that happened: in which workload and step, what the policy was asked, and
    what it said. None where that does not apply."""

    workload: int | None
    step: int | None
    method: str | None
    said: str

    def __str__(self) -> str:
        place = f"workload {self.workload}, step {self.step}, " if self.workload is not None else ""
        asked = f"{self.method}: " if self.method else ""
        return f"{place}{asked}{self.said}"


@dataclass(slots=True)
class Line:
    """What is to say of one invariant.

    failed: how often it did not hold, or held only because of the engine. reported: what the engine
    did for it that a good policy may need, too.
    """

    failed: int = 0
    reported: int = 0
    example: Example | None = None

    @property
    def passed(self) -> bool:
        return self.failed == 0


@dataclass(slots=True)
class Verdict:
    """All of it. workloads, steps: how many were played."""

    policy: str
    seed: int
    workloads: int = 0
    steps: int = 0
    lines: dict[str, Line] = field(default_factory=lambda: {name: Line() for name in INVARIANTS})

    @property
    def passed(self) -> bool:
        return all(line.passed for line in self.lines.values())

    def fail(self, invariant: str, example: Example) -> None:
        """Hold something against the policy."""
        line = self.lines[invariant]
        if line.failed == 0:
            line.example = example
        line.failed += 1

    def report(self, invariant: str, count: int, example: Example | None = None) -> None:
        """Say that something happened `count` times, without holding it against the policy."""
        line = self.lines[invariant]
        line.reported += count
        if count and line.example is None:
            line.example = example

    def as_json(self) -> dict[str, Any]:
        """For scripts; `example` is null where nothing happened."""
        return {
            "policy": self.policy,
            "passed": self.passed,
            "seed": self.seed,
            "workloads": self.workloads,
            "steps": self.steps,
            "invariants": {
                name: {
                    "means": INVARIANTS[name],
                    "passed": line.passed,
                    "failed": line.failed,
                    "reported": line.reported,
                    "example": asdict(line.example) if line.example else None,
                }
                for name, line in self.lines.items()
            },
        }
