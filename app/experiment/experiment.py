"""The experiment itself: puts one arm after the other in charge, and ends when it should."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

import structlog

from app.bridge import NotReady
from app.config.experiment_schema import ExperimentConfig
from app.config.schema import SchedulerConfig
from app.experiment.comparison import comparison, effect
from app.experiment.ledger import Ledger
from app.experiment.measures import MEASURES, Better
from app.experiment.periods import Period
from app.experiment.schedule import turns
from app.experiment.wrong import NOTHING_WRONG, Wrong
from app.metrics.experiment import Change, Figures
from app.policy_desk import Overtaken, PolicyDesk, same_policy
from app.problems import BadConfiguration
from engine.clock import Clock
from engine.outputs import FailureKind

log = structlog.stdlib.get_logger("octavo.audit")

BY: Final = "experiment"

TICK_S: Final = 0.25
"""Seconds between two looks at what goes on."""

COMPLETE: Final = "every block is complete"
BY_HAND: Final = "another policy was put in charge"
ENDED: Final = "the server ended"

Sleep = Callable[[float], Awaitable[None]]


class Experiment:
    """Arms that take turns on one engine, until enough is known or something is wrong.

    The first arm is what the others are held to, and stays in charge in the end, unless somebody
    put another policy there: then that one does. Made before the server serves; `run` is a task of
    its event loop.
    """

    def __init__(
        self,
        config: ExperimentConfig,
        scheduler: SchedulerConfig,
        desk: PolicyDesk,
        clock: Clock,
        wrong: Callable[[], Wrong] = lambda: NOTHING_WRONG,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        """wrong: what policies did wrong so far, as the engine's guard counts it."""
        self.config = config
        self.ledger = Ledger(len(config.arms), config.period_s)
        self.over: str | None = None
        self._names = list(config.arms)
        self._policies = [scheduler.model_copy(update=dict(arm)) for arm in config.arms.values()]
        self._desk = desk
        self._clock = clock
        self._wrong_so_far = wrong
        self._sleep = sleep
        self._arm: int | None = None
        self._until = 0.0
        self._wrong = [NOTHING_WRONG] * len(config.arms)
        self._told: tuple[int, list[dict[str, Any]]] = (-1, [])
        self._wish: str | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def arm(self) -> str | None:
        """The name of the arm in charge; None before the first turn and after the last."""
        return None if self._arm is None or self.over is not None else self._names[self._arm]

    def start(self) -> None:
        """Take turns from now on, beside everything else on the event loop."""
        self._task = asyncio.get_running_loop().create_task(self.run())

    def close(self) -> None:
        """Take no more turns, and leave in charge who is: the server ends."""
        if self._task is not None:
            self._task.cancel()

    def stop(self, reason: str) -> None:
        """End it, for a reason that is told, as soon as possible."""
        self._wish = self._wish or reason

    async def run(self) -> None:
        """Take turns until the experiment is over, then leave the first arm in charge."""
        log.info("experiment begins", arms=self._names, period_s=self.config.period_s)
        try:
            reason = await self._take_turns()
        except Overtaken:
            reason = BY_HAND
        except (NotReady, BadConfiguration) as error:
            if _shutting_down(error):
                self._end(ENDED)
                return
            reason = f"an arm cannot take its turn: {error}"
        except asyncio.CancelledError:
            self._end(ENDED)
            raise
        self._end(reason)
        if reason != BY_HAND:
            await self._leave_first()

    async def _take_turns(self) -> str:
        """Returns why they are over."""
        config = self.config
        for turn in turns(len(self._names), config.seed):
            if turn.block >= config.most_blocks:
                break
            await self._put(turn.arm)
            begun, before = self._clock.now(), self._wrong_so_far()
            self._until = begun + config.period_s
            period = self.ledger.begin(turn, begun + config.washout_s)
            reason = await self._watch(period)
            self._wrong[turn.arm] += self._wrong_so_far() - before
            if reason:
                self.ledger.drop()
                return reason
            self.ledger.close(self._clock.now())
        while len(self.ledger.blocks) < config.most_blocks:
            await self._sleep(TICK_S)
            if reason := self._look(None):
                return reason
        return COMPLETE

    async def _put(self, arm: int) -> None:
        wanted = self._policies[arm]
        current = self._desk.current
        if not same_policy(current, wanted):
            await self._desk.swap(wanted, BY, instead_of=current)
        self._arm = arm

    async def _watch(self, period: Period) -> str | None:
        """Let a turn pass; why the experiment has to end before it is over, None if it has not."""
        while True:  # once at least, however short a turn is: it is all that lets others run
            await self._sleep(max(0.0, min(TICK_S, self._until - self._clock.now())))
            if reason := self._look(period):
                return reason
            if self._clock.now() >= self._until:
                return None

    def _look(self, period: Period | None) -> str | None:
        """What speaks for ending now, if anything does."""
        now = self._clock.now()
        if self._wish is not None:
            return self._wish
        if self._strange:
            return BY_HAND
        if self.ledger.settle(now) and (reason := self._surely_worse()):
            return reason
        return self._beyond_limit(period, now) if period is not None else None

    @property
    def _strange(self) -> bool:
        """Whether somebody else has put a policy in charge."""
        assert self._arm is not None
        return not same_policy(self._desk.current, self._policies[self._arm])

    def _surely_worse(self) -> str | None:
        stop = self.config.stop
        if stop.worse_by is None:
            return None
        lower = MEASURES[stop.metric] is Better.LOWER
        for arm in range(1, len(self._names)):
            found = effect(self.ledger.blocks, arm, stop.metric, self.config.level)
            if found is None:
                continue
            least = found.low if lower else -found.high
            if least > (stop.worse_by if lower else min(stop.worse_by, 0.999)):
                return f"{self._names[arm]} makes {stop.metric} worse by {least:.0%} at least"
        return None

    def _beyond_limit(self, period: Period, now: float) -> str | None:
        stop = self.config.stop
        if stop.limit is None or period.turn.arm == 0 or now < period.opens:
            return None
        value = period.so_far(stop.metric, now)
        lower = MEASURES[stop.metric] is Better.LOWER
        if value is None or (value <= stop.limit if lower else value >= stop.limit):
            return None
        name = self._names[period.turn.arm]
        return f"{stop.metric} is {value:.3g} under {name}, beyond the limit of {stop.limit:g}"

    def _end(self, reason: str) -> None:
        if self.over is None:
            self.over = reason
            say = log.info if reason in (COMPLETE, ENDED) else log.warning
            say("experiment ended", reason=reason, blocks=len(self.ledger.blocks))

    async def _leave_first(self) -> None:
        try:
            await self._put(0)
        except Overtaken:
            return  # who stays, as by hand at any other time
        except (NotReady, BadConfiguration) as error:
            if not _shutting_down(error):
                log.error("the first arm cannot be put in charge", why=str(error))

    # ---------------------------------------------------------------- reading

    def document(self) -> dict[str, Any]:
        """What is known by now, for people and scripts; made anew when a block is complete."""
        blocks = self.ledger.blocks
        now, period = self._clock.now(), self.ledger.current
        return {
            "running": self.over is None,
            "over": self.over,
            "in_charge": self.arm,
            "washout": period is not None and now < period.opens,
            "next_turn_in_s": max(0.0, self._until - now) if self.over is None else None,
            "period_s": self.config.period_s,
            "washout_s": self.config.washout_s,
            "level": self.config.level,
            "blocks": len(blocks),
            "arms": [self._about(arm) for arm in range(len(self._names))],
            "comparisons": self._comparisons(),
        }

    def figures(self) -> Figures:
        """The same for dashboards, of the whole only."""
        changes = [
            Change(each["arm"], measure, told["low"], told["change"], told["high"])
            for each in self._comparisons()
            for measure, told in each["measures"].items()
            if "change" in told
        ]
        return Figures(self.over is None, len(self.ledger.blocks), self.arm, changes)

    def _about(self, arm: int) -> dict[str, Any]:
        """What an arm is, and what its periods in complete blocks came to on average."""
        results = [block[arm] for block in self.ledger.blocks]
        means: dict[str, float | None] = {}
        for measure in MEASURES:
            values = [v for each in results if (v := each.whole.get(measure)) is not None]
            means[measure] = sum(values) / len(values) if values else None
        requests = sum(each.requests for each in results)
        spanned = sum(each.spanned for each in results)
        return {
            "arm": self._names[arm],
            "policy": self._policies[arm].policy,
            "params": self._policies[arm].params,
            "faults": self._wrong[arm].faults,
            "fallback_steps": self._wrong[arm].fallback_steps,
            "seconds": sum(each.seconds for each in results),
            "requests": requests,
            "spanned": spanned / requests if requests else None,
            "means": means,
        }

    def _comparisons(self) -> list[dict[str, Any]]:
        """Each arm beside the first; made anew when a block is complete."""
        blocks, (first, *others) = self.ledger.blocks, self._names
        if self._told[0] != len(blocks):
            told = [
                {"arm": name, "against": first} | comparison(blocks, arm, self.config.level)
                for arm, name in enumerate(others, 1)
            ]
            self._told = len(blocks), told
        return self._told[1]


def _shutting_down(error: Exception) -> bool:
    """Whether a policy cannot be put in charge because the server ends."""
    return isinstance(error, NotReady) and error.failure.kind is FailureKind.SHUTTING_DOWN
