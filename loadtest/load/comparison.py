"""Whether the clients' numbers agree with the server's own histograms.

The two look at different things: the server counts from a request's arrival to the step that made a
token, a client from sending to reading. What lies between (a connection, reading and checking the
request, writing and reading frames, and the client's own turn on the processor) is in the clients'
numbers alone, so they are a little larger, and by more on a busy machine.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from loadtest.live.server_metrics import Histogram, Scrape
from loadtest.load.rows import LocustRow, overall

WITHIN: Final = 0.05
"""How far two numbers may be apart, as part of the server's."""

FAMILIES: Final = {
    "TTFT": "octavo_time_to_first_token_seconds",
    "TPOT": "octavo_time_per_output_token_seconds",
    "E2E": "octavo_request_seconds",
    "queue": "octavo_queue_time_seconds",
}
"""The server's histogram of each of Locust's rows."""

TOO_SHORT_S: Final = 0.001
"""Times below it are not held to one another: Locust counts whole milliseconds."""

ON_THE_WAY_S: Final = {"TTFT": 0.008, "E2E": 0.008}
"""What may lie between the two sides of a request, however short it is: 4 to 5 ms were measured."""


@dataclass(frozen=True, slots=True)
class Pair:
    """One number from both sides, in seconds (a count: in requests).

    tolerance: how far they may be apart; above WITHIN where one side rounds.
    """

    name: str
    figure: str
    client: float
    server: float
    tolerance: float

    @property
    def apart(self) -> float:
        """Client - server, as part of the server's."""
        return self.client / self.server - 1 if self.server else math.inf

    @property
    def agrees(self) -> bool:
        return abs(self.client - self.server) <= self.tolerance


def compare(rows: list[LocustRow], before: Scrape, after: Scrape) -> list[Pair]:
    """Counts, means and percentiles of every latency that both sides have."""
    pairs: list[Pair] = []
    for name, family in FAMILIES.items():
        row, later = overall(rows, name), after.histogram(family)
        if row is not None and later is not None:
            pairs += _pairs(row, later.since(before.histogram(family)))
    return pairs


def agree(pairs: Sequence[Pair]) -> bool:
    """Whether there is something to compare, and all of it agrees."""
    return bool(pairs) and all(pair.agrees for pair in pairs)


def _pairs(row: LocustRow, histogram: Histogram) -> Iterator[Pair]:
    yield Pair(row.name, "count", row.count, int(histogram.count), 0.0)
    if histogram.mean is not None:
        tolerance = max(WITHIN * histogram.mean, ON_THE_WAY_S.get(row.name, TOO_SHORT_S))
        yield Pair(row.name, "mean", row.mean, histogram.mean, tolerance)
    for figure, share, found in (("p50", 0.5, row.p50), ("p99", 0.99, row.p99)):
        told, place = histogram.quantile(share), histogram.bucket_of(share)
        if found is not None and told is not None and place is not None:
            rounding = max(_locust_step(found) / 2, TOO_SHORT_S) + _width(place) / 2
            apart = max(WITHIN * told, ON_THE_WAY_S.get(row.name, 0.0))
            yield Pair(row.name, figure, found, told, apart + rounding)


def _width(place: tuple[float, float]) -> float:
    return 0.0 if math.isinf(place[1]) else place[1] - place[0]


def _locust_step(seconds: float) -> float:
    """What Locust rounds times to: a millisecond, and two digits above a hundred."""
    milliseconds = 1e3 * seconds
    if milliseconds < 100:
        return 1e-3
    return float(10 ** (math.floor(math.log10(milliseconds)) - 1)) / 1e3
