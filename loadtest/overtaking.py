"""Who was overtaken, and how often."""

from __future__ import annotations

import bisect
from collections.abc import Sequence

from engine.simulation.records import Record


def count_overtaking(records: Sequence[Record]) -> None:
    """Note in each record how many requests arrived later and were admitted earlier.

    records: in order of arrival. Who was never admitted overtook nobody, and is not counted for;
    who was admitted in the same step did not overtake.
    """
    admitted: list[float] = []
    for record in reversed(records):
        if record.admitted_at is not None:
            record.overtaken = bisect.bisect_left(admitted, record.admitted_at)
            admitted.insert(record.overtaken, record.admitted_at)
