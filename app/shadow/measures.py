"""What a policy is scored by, over a window of time: in reality and in virtual time alike.

    opens ├──────────────────────────────┤ closes
    first tokens   of requests that arrive here; who has none at the end has waited until then
    gaps, tokens   that come here, whoever's they are
    ends           that are here, whenever the request arrived

Nothing is counted by what happens later, so that a window is complete when it closes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, TypeAlias

from app.experiment.gaps import Gaps
from app.experiment.measures import TAIL, Better

MEASURES: Final[Mapping[str, Better]] = MappingProxyType(
    {
        "ttft_s": Better.LOWER,
        "itl_s": Better.LOWER,
        "itl_p99_s": Better.LOWER,
        "e2e_s": Better.LOWER,
        "output_tok_s": Better.HIGHER,
        "shed": Better.LOWER,
    }
)
"""What policies are compared by:

ttft_s        mean seconds from arrival to the first token
itl_s         mean seconds between two tokens of a sequence
itl_p99_s     the 99th percentile of these, to within 5 %
e2e_s         mean seconds from arrival to the last token, of who was served in full
output_tok_s  tokens generated a second
shed          requests that were refused
"""

OF_GROUPS: Final = ("ttft_s", "e2e_s", "output_tok_s", "shed")
"""What is told of each tenant and class."""

MOST_GROUPS: Final = 64
"""Tenants or classes that are told apart; all others are OTHERS."""

OTHERS: Final = "other"

Values: TypeAlias = dict[str, float | None]


@dataclass(slots=True)
class Sums:
    """Over some of a window's requests and tokens; times in seconds."""

    begun: int = 0
    waited: float = 0.0
    served: int = 0
    lasted: float = 0.0
    tokens: int = 0
    shed: int = 0

    def measured(self, seconds: float) -> Values:
        """OF_GROUPS, over a window of so many seconds."""
        return {
            "ttft_s": self.waited / self.begun if self.begun else None,
            "e2e_s": self.lasted / self.served if self.served else None,
            "output_tok_s": self.tokens / seconds if seconds > 0 else None,
            "shed": float(self.shed),
        }


@dataclass(frozen=True, slots=True)
class Whose:
    """Whose a request is, and since when; `key` tells it from others."""

    key: int
    arrival: float
    tenant: str
    slo_class: str


@dataclass(frozen=True, slots=True)
class Score:
    """What a window came to."""

    requests: int
    whole: Values
    by_tenant: Mapping[str, Values]
    by_class: Mapping[str, Values]


class Window:
    """Takes in what happens from `opens` on; who tells it leaves out what happens elsewhere."""

    def __init__(self, opens: float) -> None:
        self.opens = opens
        self.requests = 0
        self._whole = Sums()
        self._gaps = Gaps()
        self._tenants: dict[str, Sums] = {}
        self._classes: dict[str, Sums] = {}
        self._waiting: dict[int, Whose] = {}

    def arrived(self, whose: Whose) -> None:
        """A request came."""
        self.requests += 1
        self._waiting[whose.key] = whose

    def began(self, whose: Whose, at: float) -> None:
        """A request has its first token; counts if it is one that arrived in this window."""
        if self._waiting.pop(whose.key, None) is not None:
            self._begin(whose, at)

    def came(self, whose: Whose, tokens: int, gap: float | None) -> None:
        """Tokens came; gap: seconds before each, None before the first of a sequence."""
        for sums in self._all(whose):
            sums.tokens += tokens
        if gap is not None:
            self._gaps.add(gap, tokens)

    def served(self, whose: Whose, at: float) -> None:
        """A request has its last token."""
        for sums in self._all(whose):
            sums.served += 1
            sums.lasted += at - whose.arrival

    def shed(self, whose: Whose) -> None:
        """A request was refused; it has not waited for a first token."""
        self._waiting.pop(whose.key, None)
        for sums in self._all(whose):
            sums.shed += 1

    def left(self, whose: Whose) -> None:
        """Nobody waits for a request any more."""
        self._waiting.pop(whose.key, None)

    def score(self, closes: float) -> Score:
        """What it came to by now; nothing is taken in afterwards."""
        for whose in self._waiting.values():
            self._begin(whose, closes)
        self._waiting = {}
        seconds = closes - self.opens
        whole = self._whole.measured(seconds)
        whole |= {"itl_s": self._gaps.mean, "itl_p99_s": self._gaps.quantile(TAIL)}
        return Score(
            self.requests,
            {measure: whole[measure] for measure in MEASURES},
            {name: sums.measured(seconds) for name, sums in self._tenants.items()},
            {name: sums.measured(seconds) for name, sums in self._classes.items()},
        )

    def _begin(self, whose: Whose, at: float) -> None:
        for sums in self._all(whose):
            sums.begun += 1
            sums.waited += at - whose.arrival

    def _all(self, whose: Whose) -> tuple[Sums, Sums, Sums]:
        return (
            self._whole,
            _of(self._tenants, whose.tenant),
            _of(self._classes, whose.slo_class),
        )


def _of(groups: dict[str, Sums], name: str) -> Sums:
    """The sums of a group, as long as there is room for another one."""
    sums = groups.get(name)
    if sums is None:
        sums = groups.setdefault(name if len(groups) < MOST_GROUPS else OTHERS, Sums())
    return sums
