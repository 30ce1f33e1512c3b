"""What the statistics promise, tried on thousands of seeds of a hundred short requests.

Arms get the same seeds, up to 4,000: fcfs, fcfs with noise of its own, fcfs once more, fcfs on a
machine whose steps take 5% longer, and shortest-first. Comparisons are of 20 seeds each; what is
true is the mean over all of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from support.comparisons import short_requests, small_arm

from loadtest.ab.arms import SimulatedArm
from loadtest.ab.experiment import Experiment, Trial, run
from loadtest.ab.groups import parse_row
from loadtest.ab.intervals import Floats, estimate
from loadtest.ab.played import Played
from loadtest.ab.power import EFFECT, POWER, seeds_needed
from loadtest.ab.workers import cores, workers
from loadtest.traces import Arrival

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(2400),
    pytest.mark.xdist_group("ab-calibration"),  # all of them read what one fixture played
]

PAIRS, EACH = 200, 20
METRICS = ("ttft_s.mean", "ttft_s.p99", "itl_s.p99", "e2e_s.mean")
OWN_NOISE, AGAIN, SLOWER, SHORTEST = 1, 2, 3, 4
SEEDS = (PAIRS * EACH, PAIRS * EACH, 100, 1500, 1500)
"""Of each arm."""


def slower(arm: SimulatedArm, factor: float) -> SimulatedArm:
    """The same arm where everything takes longer."""
    machine = arm.house.machine
    cost = machine.cost
    scaled = replace(
        cost,
        base=cost.base * factor,
        prompt_token=cost.prompt_token * factor,
        decode=cost.decode * factor,
        kv_read=cost.kv_read * factor,
        chunk_context=cost.chunk_context * factor,
    )
    return replace(arm, house=replace(arm.house, machine=replace(machine, cost=scaled)))


@dataclass(frozen=True)
class Plays:
    """What came of the seeds in each arm; later arms have fewer."""

    played: Sequence[Sequence[Played]]

    def figures(self, arm: int, metric: str, seeds: int) -> Floats:
        row = parse_row(metric)
        return np.array([each.figures[row] for each in self.played[arm][:seeds]])

    def differences(self, arm: int, metric: str) -> Floats:
        """The arm minus the first, seed by seed."""
        seeds = len(self.played[arm])
        return self.figures(arm, metric, seeds) - self.figures(0, metric, seeds)

    def level(self, metric: str) -> float:
        """The mean of the first arm's figure."""
        return float(self.figures(0, metric, len(self.played[0])).mean())


@pytest.fixture(scope="module")
def plays() -> Plays:
    arms = [
        small_arm("fcfs"),
        small_arm("own noise", stream="own"),
        small_arm("again"),
        slower(small_arm("slower"), 1 + EFFECT),
        small_arm("shortest", "scheduler.policy=shortest-first"),
    ]
    experiment = Experiment(arms, requests())
    with workers(cores()) as crew:
        blocks = run(experiment, 1, crew).blocks
        trials = [
            [Trial(experiment, blocks, arm, seed) for seed in range(seeds)]
            for arm, seeds in enumerate(SEEDS)
        ]
        return Plays([crew.map(Trial.play, each) for each in trials])


def requests() -> list[Arrival]:
    """A hundred, of four tokens at most, of one tenant and class."""
    return [
        replace(each, output_tokens=min(4, each.output_tokens), tenant="default", slo_class="c0")
        for each in short_requests(rate=10.0)
    ]


def band(trials: int, probability: float) -> tuple[int, int]:
    """Where 95% of all counts lie: from the smallest with 2.5% at or below, likewise above."""
    ways, odds = range(trials + 1), math.log(probability) - math.log1p(-probability)
    logs = [math.log(math.comb(trials, k)) + k * odds for k in ways]
    chances = [math.exp(each + trials * math.log1p(-probability)) for each in logs]
    below = np.cumsum(chances)
    return int(np.searchsorted(below, 0.025)), int(np.searchsorted(below, 0.975))


def test_identical_configurations_with_identical_noise_differ_by_exactly_zero(
    plays: Plays,
) -> None:
    for first, again in zip(plays.played[0], plays.played[AGAIN], strict=False):
        assert first.figures == again.figures
        for name, latencies in first.requests.items():
            assert np.array_equal(latencies, again.requests[name], equal_nan=True)


@pytest.mark.parametrize("metric", METRICS)
def test_false_positives_are_as_many_as_the_level_says(plays: Plays, metric: str) -> None:
    pairs = plays.differences(OWN_NOISE, metric).reshape(PAIRS, EACH)
    shown = sum(estimate(each).p <= 0.05 for each in pairs)
    low, high = band(PAIRS, 0.05)
    print(f"{metric}: {shown} of {PAIRS} pairs that are alike differ, expected {low} to {high}")
    assert low <= shown <= high


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("arm", [OWN_NOISE, SLOWER, SHORTEST], ids=["noise", "slower", "shortest"])
def test_intervals_cover_a_planted_effect(plays: Plays, arm: int, metric: str) -> None:
    population = plays.differences(arm, metric)
    truth, chance, groups = population.mean(), np.random.default_rng(arm), 2000
    found = [estimate(chance.choice(population, EACH, replace=False)) for _ in range(groups)]
    covered = sum(
        each.low <= truth <= each.high
        for each in found
        if each.low is not None and each.high is not None
    )
    skew = float(np.mean((population - truth) ** 3) / population.std() ** 3)
    print(f"arm {arm} {metric}: {covered / groups:.1%} covered, skewness {skew:.2f}")
    assert covered >= 0.93 * groups


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("arm", [OWN_NOISE, SHORTEST], ids=["noise", "shortest"])
def test_a_planted_difference_of_five_percent_is_found_as_often_as_promised(
    plays: Plays, arm: int, metric: str
) -> None:
    """The differences as they scatter, moved so that their mean is 5% of the first arm's figure,
    up or down. Pilots of 20 seeds say how many it takes; experiments of so many look for it.
    The promise is for differences that are not skewed; of others two of three are found."""
    effect = EFFECT * plays.level(metric)
    around = plays.differences(arm, metric)
    around = around - around.mean()
    chance, experiments, found, asked = np.random.default_rng(arm), 1000, 0, []
    for _ in range(experiments):
        population = around + effect * chance.choice([-1, 1])
        pilot = chance.choice(population, EACH, replace=False)
        needed = seeds_needed(float(pilot.std(ddof=1)), effect)
        assert needed is not None
        asked.append(needed)
        found += estimate(chance.choice(population, needed)).p <= 0.05
    print(f"arm {arm} {metric}: {found / experiments:.1%} found, by {np.median(asked):.0f} seeds")
    least = band(experiments, POWER)[0] if arm == OWN_NOISE else experiments * 2 / 3
    assert found >= least


def test_the_planted_slowness_is_found_in_every_experiment(
    plays: Plays,
) -> None:
    population = plays.differences(SLOWER, "e2e_s.mean")
    found = [estimate(each) for each in population.reshape(-1, EACH)]
    assert all(each.p <= 0.05 and each.mean > 0 for each in found)
