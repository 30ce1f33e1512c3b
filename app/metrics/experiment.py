"""A live experiment as gauges."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from prometheus_client.core import GaugeMetricFamily, Metric


@dataclass(frozen=True, slots=True)
class Change:
    """Relative change of a measure under an arm against the first, and the ends of its interval."""

    arm: str
    measure: str
    low: float
    estimate: float
    high: float


@dataclass(frozen=True, slots=True)
class Figures:
    """What is told of an experiment. arm: in charge, None if none is."""

    running: bool = False
    blocks: int = 0
    arm: str | None = None
    changes: Sequence[Change] = ()


def no_experiment() -> Figures:
    """What is told where none is configured."""
    return Figures()


def families(figures: Figures) -> Iterable[Metric]:
    """Everything that is told of an experiment; nothing of arms where there is none."""
    yield GaugeMetricFamily(
        "octavo_experiment_running",
        "Whether policies take turns, 0 or 1",
        value=int(figures.running),
    )
    yield GaugeMetricFamily(
        "octavo_experiment_blocks", "Blocks of turns that are complete", value=figures.blocks
    )
    arm = GaugeMetricFamily(
        "octavo_experiment_arm_info", "The arm in charge, always 1", labels=("arm",)
    )
    if figures.arm is not None:
        arm.add_metric((figures.arm,), 1)
    yield arm
    changes = GaugeMetricFamily(
        "octavo_experiment_change",
        "Relative change against the first arm: estimate, and both ends of its interval",
        labels=("arm", "measure", "bound"),
    )
    for each in figures.changes:
        for bound in ("low", "estimate", "high"):
            changes.add_metric((each.arm, each.measure, bound), getattr(each, bound))
    yield changes
