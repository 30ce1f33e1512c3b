"""What Locust found, read from the statistics that it writes at its end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

ALL: Final = "all"
"""The type of rows that are over all users, see `loadtest.locustfile`."""


@dataclass(frozen=True, slots=True)
class LocustRow:
    """A row of Locust's statistics. Times in seconds; Locust rounds percentiles to two digits."""

    kind: str
    name: str
    count: int
    failures: int
    mean: float
    p50: float | None
    p99: float | None


def read_rows(path: Path) -> list[LocustRow]:
    """The rows of Locust's `--json-file`. Its CSV is a second behind when it ends."""
    return [_row(said) for said in orjson.loads(path.read_bytes())]


def overall(rows: list[LocustRow], name: str) -> LocustRow | None:
    """The row of a latency over all users; None if nothing was measured."""
    return next((row for row in rows if (row.kind, row.name) == (ALL, name)), None)


def _row(said: Mapping[str, Any]) -> LocustRow:
    count = said["num_requests"]
    times = {float(time) / 1e3: many for time, many in said["response_times"].items()}
    return LocustRow(
        kind=said["method"] or "",
        name=said["name"],
        count=count,
        failures=said["num_failures"],
        mean=said["total_response_time"] / 1e3 / count if count else 0.0,
        p50=_quantile(times, 0.5),
        p99=_quantile(times, 0.99),
    )


def _quantile(times: Mapping[float, int], share: float) -> float | None:
    """The smallest time that so many took at most; times: how many took each."""
    wanted = share * sum(times.values())
    passed = 0
    for time, many in sorted(times.items()):
        passed += many
        if passed >= wanted:
            return time
    return None
