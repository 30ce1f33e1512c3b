"""What a period is measured by."""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final

from app.experiment.gaps import Gaps

TAIL: Final = 0.99


class Better(Enum):
    """Which way a measure improves."""

    LOWER = "lower"
    HIGHER = "higher"


MEASURES: Final[Mapping[str, Better]] = MappingProxyType(
    {
        "ttft_s": Better.LOWER,
        "itl_s": Better.LOWER,
        "itl_p99_s": Better.LOWER,
        "output_tok_s": Better.HIGHER,
        "attained": Better.HIGHER,
        "failed": Better.LOWER,
    }
)
"""What arms are compared by:

ttft_s        mean seconds from arrival to the first token; who waits counts as long as it has
itl_s         mean seconds between two tokens of a sequence
itl_p99_s     the 99th percentile of these, to within 5 %
output_tok_s  tokens generated a second
attained      share of the requests with targets that got all of them
failed        share of the requests that were refused or failed
"""

OF_GROUPS: Final = ("ttft_s", "output_tok_s")
"""What tenants and classes are compared by."""


class Tally:
    """Sums over some of a period's requests, and over the tokens that came in it.

    requests: that arrived and are over, or have a first token. waited: seconds to these first
    tokens. promised, met: requests with targets, and those that got them.
    """

    __slots__ = ("failed", "first", "gaps", "met", "over", "promised", "tokens", "waited")

    def __init__(self) -> None:
        self.over = 0
        self.failed = 0
        self.first = 0
        self.waited = 0.0
        self.promised = 0
        self.met = 0
        self.tokens = 0
        self.gaps = Gaps()

    def measured(self, seconds: float) -> dict[str, float | None]:
        """Every measure, of `seconds`; None where there is nothing to go by."""
        return {
            "ttft_s": _share(self.waited, self.first),
            "itl_s": self.gaps.mean,
            "itl_p99_s": self.gaps.quantile(TAIL),
            "output_tok_s": self.tokens / seconds if seconds > 0 else None,
            "attained": _share(self.met, self.promised),
            "failed": _share(self.failed, self.over),
        }


def _share(part: float, whole: int) -> float | None:
    return part / whole if whole else None


def difference(base: float, other: float) -> float:
    """How far apart two are, over their mean: between -2 and 2, the same size either way.

    So a block with hardly any traffic moves a mean of these no more than any other.
    """
    both = abs(base) + abs(other)
    return 2 * (other - base) / both if both else 0.0


def as_change(value: float) -> float:
    """The relative change that a difference stands for: 0.5 where the other is half as much again.

    Infinite from 2 on, -1 up to -2: of two that are not negative the other is all there is, or
    nothing.
    """
    held = min(max(value, -2.0), 2.0)
    return math.inf if held == 2 else (2 + held) / (2 - held) - 1
