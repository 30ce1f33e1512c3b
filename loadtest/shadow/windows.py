"""What a server said of the windows that it has scored."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Row:
    """A measure of a window: predicted, real, and whether that was within the stated error.

    trusted: whether the window's scores were to be trusted.
    """

    window: int
    measure: str
    predicted: float
    real: float
    error: float
    stated: float
    within: bool
    trusted: bool


def rows(document: Mapping[str, Any]) -> Iterator[Row]:
    """Of GET /admin/shadow, the oldest window first; an error without end has become null."""
    for number, window in enumerate(document["errors"], 1):
        for measure, facts in window["measures"].items():
            if facts["error"] is not None and facts["stated"] is not None:
                yield Row(number, measure, **facts, trusted=window["trusted"])


def holds(document: Mapping[str, Any], *, falsified: bool) -> bool:
    """Whether it is as it should be: as many within what was stated as are to be, or, falsified,
    nothing trusted at all. False where nothing was scored."""
    found = list(rows(document))
    if falsified:
        return bool(found) and not any(row.trusted for row in found)
    beyond = sum(not row.within for row in found)
    return bool(found) and beyond <= math.floor((1 - document["level"]) * len(found) + 1e-9)
