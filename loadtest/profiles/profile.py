"""A step-cost model with where it is from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.cost import LinearCost
from engine.simulation.residuals import Residuals


@dataclass(frozen=True, slots=True)
class Observed:
    """What was measured: how many steps, and the most of each quantity in one of them.

    Beyond that a prediction is an extrapolation. error: mean of |actual - predicted| over the mean
    step; host_s: median seconds of a step in which nothing was computed.
    """

    steps: int
    decodes: int
    prompt_tokens: int
    kv_read: int
    chunk_context: int
    error: float
    host_s: float


@dataclass(frozen=True, slots=True)
class Profile:
    """What a step takes on some machine with some model, and what its KV cache holds.

    about: which model on which machine, in a line. estimate: computed, not measured. residuals: how
    steps scatter around the cost; none if nobody measured. pool_tokens: what the KV cache holds
    there, context_tokens: the longest request; None where nobody said. host_blocks: that can be
    offloaded, each in move_s seconds. observed: None of an estimate. measured_on: versions and
    processor, for people.
    """

    name: str
    about: str
    cost: LinearCost
    estimate: bool
    source: str
    licence: str = ""
    residuals: Residuals = field(default_factory=Residuals)
    pool_tokens: int | None = None
    context_tokens: int | None = None
    host_blocks: int = 0
    move_s: float = 0.0
    observed: Observed | None = None
    measured_on: Mapping[str, str] = field(default_factory=dict)
