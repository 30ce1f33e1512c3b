"""The server's side of the process that scores policies (`app.shadow.scoring`)."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Final

import orjson

from app.child.process import Child, NoChild
from app.shadow.job import Job
from app.shadow.measures import Score, Values

MODULE: Final = "app.shadow.scoring"


class NotScored(Exception):
    """There is no score, for the reason that is told."""


@dataclass(frozen=True, slots=True)
class Simulated:
    """What the simulations of a policy came to: their means, and by measure how far apart they are
    (standard deviation). faults: what the policy did wrong in all of them."""

    score: Score
    spread: Mapping[str, float]
    faults: int


class Scorer:
    """One process, started when it is needed first and again after it ended.

    timeout_s: of a job. Used by one thread at a time, but for `close`.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self.child = Child(MODULE, b"", "the process that scores policies")

    def score(self, job: Job) -> Simulated:
        """What a policy comes to. Raises NotScored."""
        try:
            answer = self.child.ask(pickle.dumps(job), self._timeout_s)
        except TimeoutError:
            raise NotScored(f"took longer than {self._timeout_s:g} s") from None
        except NoChild as reason:
            raise NotScored(str(reason)) from None
        if answer is None:
            code = self.child.end()
            raise NotScored(f"the process that scores policies ended with {code}")
        said = orjson.loads(answer)
        if "fault" in said:
            raise NotScored(said["fault"])
        return _simulated([Score(**each) for each in said["scores"]], said["faults"])

    def close(self) -> None:
        """End the process, whatever it does. From any thread."""
        self.child.close()


def _simulated(scores: Sequence[Score], faults: int) -> Simulated:
    whole = [each.whole for each in scores]
    score = Score(
        scores[0].requests,
        _means(whole),
        _of_groups([each.by_tenant for each in scores]),
        _of_groups([each.by_class for each in scores]),
    )
    return Simulated(score, _spread(whole), faults)


def _of_groups(scores: Sequence[Mapping[str, Values]]) -> dict[str, Values]:
    names = sorted({name for each in scores for name in each})
    return {name: _means([each[name] for each in scores if name in each]) for name in names}


def _means(values: Sequence[Values]) -> Values:
    """By measure; of those that have one."""
    known = {name: _known(values, name) for name in values[0]}
    return {name: fmean(each) if each else None for name, each in known.items()}


def _spread(values: Sequence[Values]) -> dict[str, float]:
    known = {name: _known(values, name) for name in values[0]}
    return {name: stdev(each) if len(each) > 1 else 0.0 for name, each in known.items()}


def _known(values: Sequence[Values], name: str) -> list[float]:
    return [value for each in values if (value := each[name]) is not None]
