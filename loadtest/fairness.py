"""How evenly tenants are served while they compete."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from engine.simulation import Record

WINDOW_S: Final = 60.0
"""Seconds over which service is compared."""

INPUT_PRICE: Final = 1.0
OUTPUT_PRICE: Final = 2.0
"""Service of a token, by the prices of the VTC paper (https://arxiv.org/abs/2401.00588)."""

Interval = tuple[float, float]


def fairness(records: Sequence[Record]) -> float:
    """Jain's index of the service of competing tenants: 1 is equal, 1/n all to one of n.

    Over a whole run everybody gets what was asked for, under any policy. So it is taken in windows
    of WINDOW_S seconds, over the tenants that were backlogged in the window: of whom somebody
    waited to be admitted at every moment of it. Service is INPUT_PRICE for each prompt token that
    had to be computed, counted with the first token, and OUTPUT_PRICE for each token generated. The
    mean over all windows with at least two such tenants; 1 if there is none.

    (Σ service)² / (n · Σ service²): R. Jain, D. Chiu, W. Hawe, A quantitative measure of fairness,
    DEC-TR-301, 1984.
    """
    return mean_jain(competing_shares(records))


def mean_jain(windows: Sequence[Sequence[float]]) -> float:
    """The mean of Jain's index over windows; 1 if there is none."""
    return sum(map(jain, windows)) / len(windows) if windows else 1.0


def largest_gap(windows: Sequence[Sequence[float]]) -> float:
    """The largest difference between what two tenants got in one window; 0 if there is none."""
    return max((max(shares) - min(shares) for shares in windows), default=0.0)


def competing_shares(records: Sequence[Record]) -> list[list[float]]:
    """What each tenant got in each window in which two or more competed, as `fairness` says."""
    service = _service(records)
    return [
        [service[tenant].get(window, 0.0) for tenant in competing]
        for window, competing in sorted(_competing(_backlogs(records)).items())
        if len(competing) > 1
    ]


def jain(shares: Sequence[float]) -> float:
    """Jain's index; 1 where nobody got anything."""
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 1.0


def _backlogs(records: Sequence[Record]) -> dict[str, list[Interval]]:
    """When each tenant had somebody waiting to be admitted, in order, overlaps joined."""
    spans: dict[str, list[Interval]] = defaultdict(list)
    for record in records:
        if record.admitted_at is None:
            continue
        begin, end = record.arrival.at, record.admitted_at
        own = spans[record.arrival.tenant]
        if own and begin <= own[-1][1]:
            own[-1] = (own[-1][0], max(own[-1][1], end))
        else:
            own.append((begin, end))
    return spans


def _competing(waits: Mapping[str, Sequence[Interval]]) -> dict[int, list[str]]:
    """The tenants that were backlogged in each window; windows in which nobody was are not there,
    however long the run."""
    competing: dict[int, list[str]] = defaultdict(list)
    for tenant, spans in waits.items():
        for span in spans:
            for window in _windows(span):
                competing[window].append(tenant)
    return competing


def _windows(span: Interval) -> Iterator[int]:
    """The windows that lie inside of an interval, in order."""
    first, last = span
    window = math.ceil(first / WINDOW_S)
    while (window + 1) * WINDOW_S <= last:
        yield window
        window += 1


def _service(records: Sequence[Record]) -> Mapping[str, Mapping[int, float]]:
    """What each tenant got, by window."""
    service: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for record in records:
        own = service[record.arrival.tenant]
        for moment, charge in _charges(record):
            own[int(moment // WINDOW_S)] += charge
    return service


def _charges(record: Record) -> Iterator[tuple[float, float]]:
    if record.token_times:
        computed = record.arrival.prompt_tokens - record.cached_tokens
        yield record.token_times[0], INPUT_PRICE * computed
    for moment in record.token_times:
        yield moment, OUTPUT_PRICE
