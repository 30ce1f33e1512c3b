"""What came of one seed in one arm, as numbers that can be sent to another process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.simulation import Record
from loadtest.ab.groups import ALL, HEAVIEST, OTHERS, Group, Row
from loadtest.ab.metrics import OF_ALL, OF_GROUPS, Metric
from loadtest.ab.pairs import Latencies, latencies
from loadtest.metrics import figures
from loadtest.traces import Arrival

Figures = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Played:
    """figures: those that were measured, by row. requests: each one's latencies."""

    figures: Mapping[Row, float]
    requests: Latencies


def played(
    report: Figures, records: Sequence[Record], heaviest: frozenset[str] = frozenset()
) -> Played:
    """From a run's report and its requests, in order of arrival.

    heaviest: tenants that are a group besides, and all others another.
    """
    parts = dict(_parts(report))
    if heaviest:
        parts |= _shares(records, heaviest, report["duration_s"])
    met = _met(records, heaviest)
    found = {
        Row(metric.key, group): value
        for group, part in parts.items()
        for metric in (OF_ALL if group == ALL else OF_GROUPS)
        if (value := _value(metric, part, met.get(group))) is not None
    }
    return Played(found, latencies(records))


def _parts(report: Figures) -> Iterator[tuple[Group, Figures]]:
    """Classes and tenants where there are several; one alone is all."""
    yield ALL, report
    for kind in ("class", "tenant"):
        groups = report[f"by_{kind}"]
        if len(groups) > 1:
            yield from ((Group(kind, name), part) for name, part in groups.items())


def _shares(
    records: Sequence[Record], heaviest: frozenset[str], duration: float
) -> dict[Group, Figures]:
    few = [record for record in records if record.arrival.tenant in heaviest]
    others = [record for record in records if record.arrival.tenant not in heaviest]
    return {HEAVIEST: figures(few, duration), OTHERS: figures(others, duration)}


def _met(records: Sequence[Record], heaviest: frozenset[str]) -> dict[Group, float]:
    """The part of each group's requests that was completed within its targets."""
    kept: dict[Group, list[bool]] = {}
    for record in records:
        for group in _groups(record.arrival, heaviest):
            kept.setdefault(group, []).append(record.met)
    return {group: sum(each) / len(each) for group, each in kept.items()}


def _groups(arrival: Arrival, heaviest: frozenset[str]) -> tuple[Group, ...]:
    share = HEAVIEST if arrival.tenant in heaviest else OTHERS
    return (ALL, Group("class", arrival.slo_class), Group("tenant", arrival.tenant), share)


def _value(metric: Metric, part: Figures, met: float | None) -> float | None:
    """The figure of a metric; None where nothing was measured for it."""
    if metric.key == "met":
        return met
    value: Any = part
    for name in metric.key.split("."):
        value = value.get(name) if value is not None else None
    return None if value is None else float(value)
