"""Whose figure it is: that of all requests, of a class, of a tenant, or of the heaviest tenants."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from loadtest.ab.metrics import METRICS, OF_GROUPS, Metric
from loadtest.traces import Arrival


@dataclass(frozen=True, slots=True, order=True)
class Group:
    """Requests with something in common. kind: all, class, tenant or share; name: "" for all."""

    kind: str = "all"
    name: str = ""

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}" if self.name else self.kind


ALL = Group()
HEAVIEST, OTHERS = Group("share", "heaviest"), Group("share", "others")


@dataclass(frozen=True, slots=True, order=True)
class Row:
    """One figure of one group. Written METRIC, or METRIC@KIND:NAME."""

    metric: str
    group: Group = ALL

    def __str__(self) -> str:
        return self.metric if self.group == ALL else f"{self.metric}@{self.group}"

    @property
    def about(self) -> Metric:
        return METRICS[self.metric]


def parse_row(text: str) -> Row:
    """A row from how it is written. Raises ValueError that says what there is."""
    metric, at, group = text.partition("@")
    kind, _, name = group.partition(":")
    if at and (kind not in ("class", "tenant", "share") or not name):
        raise ValueError(f"{group}: expected class:NAME, tenant:NAME or share:heaviest or others")
    known = METRICS if not at else {each.key: each for each in OF_GROUPS}
    if metric not in known:
        raise ValueError(f"{metric}: expected one of {', '.join(known)}")
    return Row(metric, Group(kind, name) if at else ALL)


def heaviest_tenants(arrivals: Sequence[Arrival], count: int) -> frozenset[str]:
    """The tenants with most requests; of equals the first by name."""
    requests = Counter(arrival.tenant for arrival in arrivals)
    return frozenset(sorted(requests, key=lambda tenant: (-requests[tenant], tenant))[:count])
