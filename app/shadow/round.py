"""One round of scoring: the policy in charge, how sure that is, and then all others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

from app.config.schema import SchedulerConfig
from app.shadow.job import Job
from app.shadow.machine import MachineMaker
from app.shadow.measures import Score
from app.shadow.scorer import NotScored, Scorer, Simulated
from app.shadow.scores import Scored
from app.shadow.steps import Scatter
from app.shadow.traffic import Stretch
from app.shadow.trust import COST_DOUBT, JUDGED, own_error


@dataclass(frozen=True, slots=True)
class Round:
    """What is to be scored. policy: that was in charge; real: what happened; others: by name.

    cost_factor: what the cost model's seconds are falsified by.
    """

    stretch: Stretch
    real: Score
    scatter: Scatter
    policy: SchedulerConfig
    others: Mapping[str, SchedulerConfig]
    seeds: int
    cost_factor: float = 1.0

    def score(self, scorer: Scorer, make_machine: MachineMaker) -> Scored:
        """Takes its time: not for the event loop. Raises NotScored if what is in charge cannot be
        scored; what keeps a shadow from it is told of that one."""
        machine = make_machine()
        weather, noise = self.scatter.beside(machine.cost)
        job = partial(
            Job,
            self.stretch,
            machine=replace(machine, noise=noise),
            seeds=self.seeds,
            weather=weather,
            slower=self.cost_factor,
        )
        control = scorer.score(job(policy=self.policy))
        doubt = COST_DOUBT * self.cost_factor
        slower = scorer.score(job(policy=self.policy, slower=self.cost_factor + doubt))
        faster = scorer.score(job(policy=self.policy, slower=self.cost_factor - doubt))
        return Scored(
            opens=self.stretch.opens,
            closes=self.stretch.closes,
            policy=self.policy,
            real=self.real,
            control=control,
            own=self._own(control, slower, faster),
            bias=self.scatter.bias,
            others={
                name: _or_why_not(scorer, job(policy=policy))
                for name, policy in self.others.items()
            },
        )

    def _own(self, control: Simulated, slower: Simulated, faster: Simulated) -> dict[str, float]:
        """What the simulation says of its own errors, where there is anything to say."""
        own: dict[str, float] = {}
        for measure in JUDGED:
            mean, more, less = (each.score.whole[measure] for each in (control, slower, faster))
            if mean is not None and more is not None and less is not None:
                own[measure] = own_error(mean, more, less, control.spread[measure], self.seeds)
        return own


def _or_why_not(scorer: Scorer, job: Job) -> Simulated | str:
    try:
        return scorer.score(job)
    except NotScored as reason:
        return str(reason)
