"""Does a simulation come true? The same arrivals in virtual time and through the real engine.

The workload is none that was calibrated with: other lengths, and arrivals in bursts. What it takes
when all of it is there at once is the capacity; then it arrives at parts of that. Runs are repeated
in turns, so that a busy moment of the machine meets all of them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any, Final

from loadtest.calibration.live import LiveEngine
from loadtest.houses import House
from loadtest.metrics import duration, figures
from loadtest.simulation import Record
from loadtest.traces import Arrival, drawn

LOADS: Final = (0.5, 0.7, 0.9)
ALLOWED: Final = {0.5: 0.1, 0.7: 0.1, 0.9: 0.25}
"""By load, the relative error that is allowed; up to 0.7 twice the spread of repeats if more."""

CLOSE_TO_FULL: Final = 0.8
CAPACITY_ALLOWED: Final = 0.1
BURSTINESS: Final = 0.7
SEEDS: Final = 10
"""Simulated runs that a prediction is the mean of, each with its own noise."""

METRICS: Final = {"ttft_mean_s": ("ttft_s", "mean"), "itl_p99_s": ("itl_s", "p99")}

Ran = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Prediction:
    """One figure: predicted, and measured in each repeat. load: None of the capacity."""

    metric: str
    load: float | None
    predicted: float
    measured: Sequence[float]

    @property
    def error(self) -> float:
        """Of the prediction, relative to the mean of what was measured."""
        return self.predicted / mean(self.measured) - 1

    @property
    def spread(self) -> float:
        """Largest less smallest repeat, relative to their mean."""
        return (max(self.measured) - min(self.measured)) / mean(self.measured)

    @property
    def allowed(self) -> float:
        """The error that is allowed."""
        if self.load is None:
            return CAPACITY_ALLOWED
        allowed = ALLOWED[self.load]
        return allowed if self.load > CLOSE_TO_FULL else max(allowed, 2 * self.spread)

    @property
    def holds(self) -> bool:
        return abs(self.error) <= self.allowed

    def facts(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "metric": self.metric,
            "load": self.load,
            "predicted": self.predicted,
            "measured": list(self.measured),
            "error": self.error,
            "spread": self.spread,
            "allowed": self.allowed,
            "holds": self.holds,
        }


def workload(requests: int, longest: int, seed: int = 0) -> list[Arrival]:
    """Log-normal lengths, medians 96 in and 40 out; all at once. longest: tokens of a request."""
    chance = random.Random(f"fresh {seed}")
    most_out = min(256, longest // 4)
    return [
        Arrival(
            at=0.0,
            prompt_tokens=min(longest - most_out, 1 + round(chance.lognormvariate(4.56, 0.9))),
            output_tokens=min(most_out, 1 + round(chance.lognormvariate(3.69, 0.7))),
        )
        for _ in range(requests)
    ]


def check(
    house: House, live: LiveEngine, *, seconds: float, repeats: int, ran: Ran
) -> list[Prediction]:
    """Predict capacity and latencies, and measure them. seconds: of each run, roughly.

    house: with the noise that was measured. ran: called after each real run.
    """
    longest = house.machine.limits.model_len
    few = workload(64, longest)
    requests = max(32, round(seconds * 64 / _seconds(house, few)))
    all_at_once = workload(requests, longest)
    capacity = mean(requests / _seconds(house, all_at_once, seed) for seed in range(SEEDS))
    offers = {
        load: drawn(all_at_once[: round(load * requests)], load * capacity, BURSTINESS, seed=1)
        for load in LOADS
    }
    capacities: list[float] = []
    measured: dict[float, list[dict[str, float]]] = {load: [] for load in LOADS}
    for _ in range(repeats):
        capacities.append(requests / duration(live.run(all_at_once)))
        ran()
        for load, offered in offers.items():
            measured[load].append(_latencies(live.run(offered)))
            ran()
    predicted = {load: _predicted(house, offered) for load, offered in offers.items()}
    return [
        Prediction("capacity_req_s", None, capacity, capacities),
        *(
            Prediction(metric, load, predicted[load][metric], [m[metric] for m in measured[load]])
            for load in LOADS
            for metric in METRICS
        ),
    ]


def _seconds(house: House, arrivals: Sequence[Arrival], seed: int = 0) -> float:
    """What a simulated run takes."""
    return duration(house.simulate(arrivals, seed=seed).records)


def _predicted(house: House, arrivals: Sequence[Arrival]) -> dict[str, float]:
    """The mean of simulated runs."""
    runs = [_latencies(house.simulate(arrivals, seed=seed).records) for seed in range(SEEDS)]
    return {metric: mean(run[metric] for run in runs) for metric in METRICS}


def _latencies(records: Sequence[Record]) -> dict[str, float]:
    answer = figures(records, duration(records))
    return {metric: float(answer[key][which]) for metric, (key, which) in METRICS.items()}
