"""What became of simulated requests."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from engine.outputs import Counters
from engine.simulation.arrival import Arrival
from policies.base import Policy


@dataclass(frozen=True, slots=True)
class Targets:
    """What a request of a class was promised, in seconds; inf is nothing.

    ttft: from arrival to the first token; tpot: a token after the first, on average; e2e: from
    arrival to the last token. The first two are what policies see as deadline and target.
    queue: longest wait to be started, after which a request is refused. priority: of a request that
    has none itself.
    """

    ttft: float = math.inf
    tpot: float = math.inf
    e2e: float = math.inf
    queue: float = math.inf
    priority: int = 0


NO_TARGETS = Targets()


@dataclass(slots=True)
class Record:
    """What became of one request. Times in seconds from the first arrival of the trace.

    admitted_at: when it was first admitted; None if it never was. token_times: when each of its
    tokens was known. shed: why it was refused, None if it was not. cached_tokens: prompt tokens
    found in the prefix cache when it was first admitted. overtaken: requests that arrived later and
    were admitted earlier; None until somebody counts them.
    """

    arrival: Arrival
    targets: Targets
    admitted_at: float | None = None
    token_times: array[float] = field(default_factory=lambda: array("d"))
    shed: str | None = None
    preemptions: int = 0
    recomputed_tokens: int = 0
    cached_tokens: int = 0
    overtaken: int | None = None

    @property
    def computed_tokens(self) -> int:
        """Tokens that were computed of it, all of them counted each time."""
        if self.admitted_at is None:
            return 0
        first = self.arrival.prompt_tokens - self.cached_tokens + len(self.token_times)
        return first + self.recomputed_tokens

    @property
    def completed(self) -> bool:
        """Whether it got all its tokens."""
        return len(self.token_times) == self.arrival.output_tokens

    @property
    def ttft(self) -> float:
        """From arrival to the first token."""
        return self.token_times[0] - self.arrival.at

    @property
    def e2e(self) -> float:
        """From arrival to the last token."""
        return self.token_times[-1] - self.arrival.at

    @property
    def tpot(self) -> float:
        """Mean time of a token after the first; 0 if there is none."""
        after = len(self.token_times) - 1
        return (self.token_times[-1] - self.token_times[0]) / after if after else 0.0

    @property
    def met(self) -> bool:
        """Whether it was completed within all its targets."""
        targets = self.targets
        return (
            self.completed
            and self.ttft <= targets.ttft
            and self.tpot <= targets.tpot
            and self.e2e <= targets.e2e
        )


@dataclass(frozen=True, slots=True)
class Simulation:
    """A simulated run: its requests in order of arrival; the engine's counts and the policy at the
    end.

    prediction_error: mean of |actual - predicted| over the mean of steps' seconds.
    queue_seconds: how long requests waited in all, by reason (`engine.queue_time`).
    """

    records: Sequence[Record]
    counters: Counters
    forced_admissions: int
    policy_faults: Mapping[str, int]
    policy: Policy
    prediction_error: float = 0.0
    queue_seconds: Mapping[str, float] = field(default_factory=dict)
