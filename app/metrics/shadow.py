"""What shadow policies were scored, as gauges."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from prometheus_client.core import GaugeMetricFamily, Metric


@dataclass(frozen=True, slots=True)
class Judged:
    """A measure of the latest window under the policy in charge; errors are relative."""

    measure: str
    real: float
    error: float
    stated: float


@dataclass(frozen=True, slots=True)
class Figures:
    """What is told of shadows. trusted: whether the latest window's scores are; windows: how many
    were scored, skipped: and were not; scores: policy, measure and value of each."""

    trusted: bool = False
    windows: int = 0
    skipped: int = 0
    judged: Sequence[Judged] = ()
    scores: Sequence[tuple[str, str, float]] = ()


def no_shadow() -> Figures:
    """What is told where none is configured."""
    return Figures()


def families(figures: Figures) -> Iterable[Metric]:
    """Everything that is told of shadows; nothing of measures before a window was scored."""
    yield GaugeMetricFamily(
        "octavo_shadow_trusted",
        "Whether the latest scores of shadow policies are to be trusted, 0 or 1",
        value=int(figures.trusted),
    )
    yield GaugeMetricFamily(
        "octavo_shadow_windows", "Windows of traffic that were scored", value=figures.windows
    )
    yield GaugeMetricFamily(
        "octavo_shadow_windows_skipped",
        "Windows of traffic that could not be scored",
        value=figures.skipped,
    )
    real = GaugeMetricFamily(
        "octavo_shadow_real", "What happened in the latest window scored", labels=("measure",)
    )
    error = GaugeMetricFamily(
        "octavo_shadow_error",
        "Relative error of what was predicted of the policy in charge",
        labels=("measure",),
    )
    stated = GaugeMetricFamily(
        "octavo_shadow_stated_error",
        "Relative error that was stated for that prediction",
        labels=("measure",),
    )
    for each in figures.judged:
        real.add_metric((each.measure,), each.real)
        error.add_metric((each.measure,), each.error)
        stated.add_metric((each.measure,), each.stated)
    yield from (real, error, stated)
    scores = GaugeMetricFamily(
        "octavo_shadow_score",
        "What the latest window would have come to, simulated; policy: a shadow, or in_charge",
        labels=("policy", "measure"),
    )
    for policy, measure, value in figures.scores:
        scores.add_metric((policy, measure), value)
    yield scores
