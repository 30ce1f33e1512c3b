"""Experiments: arms that get the same requests, seed by seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loadtest.ab.arms import Arm
from loadtest.ab.comparison import Comparison, compare
from loadtest.ab.groups import Row, heaviest_tenants
from loadtest.ab.played import Played, played
from loadtest.ab.resampling import Blocks, blocks_for, longest_busy_period, resample
from loadtest.ab.workers import Workers
from loadtest.ab.workload import PLAIN, Workload
from loadtest.traces import Arrival


@dataclass(frozen=True, slots=True)
class Experiment:
    """arms: the first is what others are compared with. arrivals: as prepared, at their speed.

    load: that speed in parts of capacity; None where it was not asked for.
    """

    arms: Sequence[Arm]
    arrivals: Sequence[Arrival]
    workload: Workload = PLAIN
    load: float | None = None

    def seed(self, blocks: Blocks, number: int) -> list[Arrival]:
        """The requests of a seed, the same for all arms."""
        return self.workload.joined(resample(self.arrivals, blocks.requests, number))


@dataclass(frozen=True, slots=True)
class Look:
    """The trace itself in one arm, to see how long it is busy. Can be sent to another process."""

    experiment: Experiment
    arm: int
    seed: int = 0

    def busy_s(self) -> float:
        """The longest busy period."""
        experiment = self.experiment
        offered = experiment.workload.joined(experiment.arrivals)
        return longest_busy_period(experiment.arms[self.arm].run(offered, self.seed)[1])


@dataclass(frozen=True, slots=True)
class Trial:
    """A seed in one arm. Can be sent to another process."""

    experiment: Experiment
    blocks: Blocks
    arm: int
    seed: int

    def play(self) -> Played:
        """What comes of it."""
        experiment = self.experiment
        offered = experiment.seed(self.blocks, self.seed)
        figures, records = experiment.arms[self.arm].run(offered, self.seed)
        heaviest = heaviest_tenants(experiment.arrivals, experiment.workload.heaviest)
        return played(figures, records, heaviest)


@dataclass(frozen=True, slots=True)
class Result:
    """What came of an experiment. played: each arm's, seed by seed."""

    experiment: Experiment
    blocks: Blocks
    played: Sequence[Sequence[Played]]

    def comparison(self, arm: int, primary: Sequence[Row]) -> Comparison:
        """An arm against the first."""
        return compare(self.played[0], self.played[arm], primary)


def run(experiment: Experiment, seeds: int, workers: Workers) -> Result:
    """Let every arm have every seed, from 0 on."""
    arms = range(len(experiment.arms))
    busy = workers.map(Look.busy_s, [Look(experiment, arm) for arm in arms])
    blocks = blocks_for(experiment.arrivals, max(busy))
    trials = [Trial(experiment, blocks, arm, seed) for seed in range(seeds) for arm in arms]
    done = workers.map(Trial.play, trials)
    return Result(experiment, blocks, [done[arm :: len(arms)] for arm in arms])
