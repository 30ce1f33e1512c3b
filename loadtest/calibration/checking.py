"""Does a simulation come true? The same arrivals in virtual time and through the real engine.

The workload is none that was calibrated with: other lengths, and arrivals in bursts. What it takes
when all of it is there at once is the capacity; then it arrives at parts of that. Runs are repeated
in turns, and between them the calibration goes on, so that a slow time of the machine meets all of
them. Figures are medians: of the repeats, and of simulated runs that scatter as was measured.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from engine.simulation import Record
from loadtest.calibration.live import LiveEngine
from loadtest.houses import House
from loadtest.metrics import duration, figures
from loadtest.traces import Arrival, drawn

LOADS: Final = (0.5, 0.7, 0.9)
ALLOWED: Final = {0.5: 0.1, 0.7: 0.1, 0.9: 0.25}
"""By load, the relative error that is allowed; up to 0.7 twice the spread of repeats if more."""

CLOSE_TO_FULL: Final = 0.8
CAPACITY_ALLOWED: Final = 0.1
BURSTINESS: Final = 0.7
SEEDS: Final = 10
"""Simulated runs that a prediction is the median of, each with its own noise."""

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
        """Of the prediction, relative to the median of what was measured."""
        return self.predicted / median(self.measured) - 1

    @property
    def spread(self) -> float:
        """Largest less smallest repeat, relative to their median."""
        return (max(self.measured) - min(self.measured)) / median(self.measured)

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


@dataclass(frozen=True, slots=True)
class Trial:
    """What a check lets run: the requests all at once, and the first of them at each load."""

    all_at_once: Sequence[Arrival]
    offered: Mapping[float, Sequence[Arrival]]

    @classmethod
    def of(cls, house: House, seconds: float) -> Trial:
        """Runs of about so many seconds each, by what the house is thought to do."""
        longest = house.machine.limits.model_len
        requests = max(32, round(seconds * 64 / _seconds(house, workload(64, longest))))
        arrivals = workload(requests, longest)
        capacity = requests / _seconds(house, arrivals)
        offered = {
            load: drawn(arrivals[: round(load * requests)], load * capacity, BURSTINESS, seed=1)
            for load in LOADS
        }
        return cls(arrivals, offered)


def check(
    guess: House,
    live: LiveEngine,
    *,
    seconds: float,
    repeats: int,
    between: Callable[[], House],
    ran: Ran,
) -> list[Prediction]:
    """Measure capacity and latencies, and predict them. seconds: of each run, roughly.

    guess: by which loads are chosen. between: called before each repeat after the first; the house
    that it returned last predicts. ran: called after each real run.
    """
    trial, house = Trial.of(guess, seconds), guess
    capacities: list[float] = []
    measured: dict[float, list[dict[str, float]]] = {load: [] for load in LOADS}
    for repeat in range(repeats):
        house = between() if repeat else house
        capacities.append(len(trial.all_at_once) / duration(live.run(trial.all_at_once)))
        ran()
        for load, offered in trial.offered.items():
            measured[load].append(_latencies(live.run(offered)))
            ran()
    return list(_predictions(house, trial, capacities, measured))


def _predictions(
    house: House,
    trial: Trial,
    capacities: Sequence[float],
    measured: Mapping[float, Sequence[Mapping[str, float]]],
) -> Iterator[Prediction]:
    """What the house does with the requests of a trial, beside what was measured."""
    at_once = trial.all_at_once
    capacity = median(len(at_once) / _seconds(house, at_once, seed) for seed in range(SEEDS))
    yield Prediction("capacity_req_s", None, capacity, capacities)
    for load, offered in trial.offered.items():
        runs = [_latencies(house.simulate(offered, seed=seed).records) for seed in range(SEEDS)]
        for metric in METRICS:
            predicted = median(run[metric] for run in runs)
            yield Prediction(metric, load, predicted, [each[metric] for each in measured[load]])


def _seconds(house: House, arrivals: Sequence[Arrival], seed: int = 0) -> float:
    """What a simulated run takes."""
    return duration(house.simulate(arrivals, seed=seed).records)


def _latencies(records: Sequence[Record]) -> dict[str, float]:
    answer = figures(records, duration(records))
    return {metric: float(answer[key][which]) for metric, (key, which) in METRICS.items()}
