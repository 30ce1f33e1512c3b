"""What can be configured of `/metrics`."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Final, TypeAlias

from pydantic import AfterValidator, Field

from app.config.section import Section

MOST_BUCKETS: Final = 64


def increasing(bounds: list[float]) -> list[float]:
    """Accept the upper bounds of buckets in order; raises ValueError for anything else."""
    if not 1 <= len(bounds) <= MOST_BUCKETS:
        raise ValueError(f"expected 1 to {MOST_BUCKETS} bounds, got {len(bounds)}")
    if bounds[0] <= 0 or any(low >= high for low, high in pairwise(bounds)):
        raise ValueError("expected bounds above 0, each larger than the one before")
    return bounds


Buckets: TypeAlias = Annotated[list[float], AfterValidator(increasing)] | None


class BucketsConfig(Section):
    """Upper bounds of the histograms' buckets; null: the ones that docs/metrics.md gives."""

    ttft_s: Buckets = Field(default=None, description="of times to the first token")
    queue_s: Buckets = Field(default=None, description="of times in the queue")
    request_s: Buckets = Field(
        default=None, description="of whole requests, and of their prefill and decode"
    )
    token_s: Buckets = Field(default=None, description="of times between two tokens")
    step_s: Buckets = Field(default=None, description="of steps")
    tokens: Buckets = Field(
        default=None, description="of numbers of tokens: of a prompt, of an answer, of a step"
    )


class MetricsConfig(Section):
    """What Prometheus reads at /metrics."""

    vllm_names: bool = Field(
        default=True, description="whether what dashboards know as vllm:* is there under that name"
    )
    max_names: Annotated[int, Field(ge=1)] = Field(
        default=100, description="most tenants with series of their own, and classes; then other"
    )
    buckets: BucketsConfig = BucketsConfig()
