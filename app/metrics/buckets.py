"""Where the histograms' buckets end where the configuration does not say.

Those of vLLM's metrics, so that boards divide alike; the first three between tokens, and the first
six of a request, are finer: a small model takes less time than vLLM's begin with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from app.config.metrics_schema import BucketsConfig

_WAIT: Final = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5,
    10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
_GAP: Final = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0,
    2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
_SIZE: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)


@dataclass(frozen=True, slots=True)
class Buckets:
    """Upper bounds by what is measured: times in seconds, and numbers of tokens."""

    ttft: Sequence[float]
    queue: Sequence[float]
    request: Sequence[float]
    token: Sequence[float]
    step: Sequence[float]
    tokens: Sequence[float]

    @classmethod
    def of(cls, config: BucketsConfig) -> Buckets:
        """What the configuration says, and the usual bounds where it says nothing."""
        return cls(
            ttft=config.ttft_s or _WAIT,
            queue=config.queue_s or _WAIT,
            request=config.request_s or _WAIT,
            token=config.token_s or _GAP,
            step=config.step_s or _GAP,
            tokens=config.tokens or _SIZE,
        )
