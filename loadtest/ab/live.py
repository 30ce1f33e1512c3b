"""Two servers instead of two simulations: open loop, one after the other, in rounds.

A round is a seed: the same requests at the same times to both, first to one and then to the other,
because two servers on one machine would take each other's time. Which is first is drawn for each
round, so that whatever drifts in an hour favours neither. Between two runs nobody is asked for a
while, so that the first one's last requests are over.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from engine.simulation import Record
from loadtest.ab.experiment import Experiment, Look, Result, Trial
from loadtest.ab.resampling import blocks_for
from loadtest.live import Settings, replay_live, report
from loadtest.traces import Arrival

PAUSE_S: Final = 2.0
WARM_UP: Final = -1
"""The seed of the prompts before the first round."""


@dataclass(frozen=True, slots=True)
class LiveArm:
    """A server. settings: keys, targets, how long to wait for a request."""

    name: str
    url: str
    settings: Settings

    def run(
        self, arrivals: Sequence[Arrival], seed: int
    ) -> tuple[Mapping[str, Any], Sequence[Record]]:
        """As `Arm` says: latencies count from when a request was due. seed: of the prompts as well,
        so that no round finds those of another in the cache. Raises LiveError."""
        run = replay_live(self.url, arrivals, replace(self.settings, seed=seed))
        return report(run), run.records()


def order(seed: int, arms: int) -> list[int]:
    """Which arm is first in a round."""
    numbers = list(range(arms))
    random.Random(f"round {seed}").shuffle(numbers)
    return numbers


def run_live(
    experiment: Experiment,
    seeds: int,
    tick: Callable[[], None] = lambda: None,
    pause: Callable[[], None] = lambda: time.sleep(PAUSE_S),
) -> Result:
    """Let every server have every seed, round by round; tick: called after each of them.

    Before, each gets the trace as it is, to see how long it is busy, and to warm up.
    """
    arms = len(experiment.arms)
    busy = []
    for arm in range(arms):
        busy.append(Look(experiment, arm, WARM_UP).busy_s())
        tick()
        pause()
    blocks = blocks_for(experiment.arrivals, max(busy))
    played: list[list[Any]] = [[None] * seeds for _ in range(arms)]
    for seed in range(seeds):
        for arm in order(seed, arms):
            played[arm][seed] = Trial(experiment, blocks, arm, seed).play()
            tick()
            pause()
    return Result(experiment, blocks, played)
