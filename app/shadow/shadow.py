"""Scores policies beside live traffic: one window after the other, as long as the server serves."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Final

import structlog

from app.config.schema import SchedulerConfig
from app.config.shadow_schema import IN_CHARGE, ShadowConfig
from app.metrics.shadow import Figures, Judged
from app.policy_desk import PolicyDesk, same_policy
from app.shadow.history import MOST_KEY_BYTES, History
from app.shadow.machine import MachineMaker
from app.shadow.measures import Score
from app.shadow.rests import Rests
from app.shadow.round import Round
from app.shadow.scorer import NotScored, Scorer
from app.shadow.scores import Scored
from app.shadow.steps import Steps
from app.shadow.traffic import Stretch
from app.shadow.trust import Trust, Verdict
from engine.clock import Clock

log = structlog.stdlib.get_logger("octavo.shadow")

TICK_S: Final = 0.25
"""Seconds between two looks at who is in charge."""

SHOWN: Final = 20
"""Windows whose errors are told, the latest ones; and of those that were not scored, why."""

MOST_OLD: Final = 4
"""Windows for which scores are worth something, if none is scored meanwhile."""

NOT_YET: Final = "no window has been scored yet"
OLD: Final = f"none of the last {MOST_OLD} windows has been scored"
SWAPPED: Final = "another policy was put in charge"
SLOW: Final = "the window before was still being scored"

Sleep = Callable[[float], Awaitable[None]]


class Shadow:
    """Cuts traffic into windows and has each scored by a process of its own, if it is fit for that.

    history and steps listen, and tell the engine nothing: what is decided does not depend on
    whether anybody is scored. Made before the server serves; `run` is a task of its event loop.
    """

    def __init__(
        self,
        config: ShadowConfig,
        scheduler: SchedulerConfig,
        desk: PolicyDesk,
        clock: Clock,
        make_machine: MachineMaker,
        scorer: Scorer | None = None,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self.config = config
        self.history = History(clock.now, config.most_requests)
        self.steps = Steps()
        self.skipped: str | None = None
        self.windows = 0
        self._skipped = 0
        self._policies = {
            name: scheduler.model_copy(update=dict(each)) for name, each in config.policies.items()
        }
        self._desk = desk
        self._clock = clock
        self._make_machine = make_machine
        self._scorer = scorer or Scorer(config.timeout_s)
        self._sleep = sleep
        self._rests = Rests()
        self._trust = Trust(config.level, config.trust_within)
        self._latest: tuple[Scored, Verdict] | None = None
        self._verdicts: deque[tuple[float, Verdict]] = deque(maxlen=SHOWN)
        self._skips: deque[tuple[float, str]] = deque(maxlen=SHOWN)
        self._policy = desk.current
        self._since = -math.inf
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="octavo-shadow")
        self._task: asyncio.Task[None] | None = None
        self._scoring: asyncio.Task[None] | None = None

    # ---------------------------------------------------------------- life

    def start(self) -> None:
        """Score windows from now on, beside everything else on the event loop."""
        self._task = asyncio.get_running_loop().create_task(self.run())

    def close(self) -> None:
        """Score no more, and end the process that does, whatever it is at."""
        for task in (self._task, self._scoring):
            if task is not None:
                task.cancel()
        self._scorer.close()
        self._executor.shutdown(wait=False, cancel_futures=True)

    async def run(self) -> None:
        """Score one window after the other, for ever; a fault of ours costs one window."""
        while True:
            await self.watch(self._clock.now() + self.config.window_s)
            try:
                self.cut()
            except Exception:
                log.exception("a window was lost")

    async def watch(self, until: float) -> None:
        """Let a window pass, with an eye on who is in charge."""
        while (left := until - self._clock.now()) > 0:
            await self._sleep(min(TICK_S, left))
            if not same_policy(self._desk.current, self._policy):
                self._policy, self._since = self._desk.current, self._clock.now()

    def cut(self) -> None:
        """End the window, and have it scored if it is fit for that."""
        stretch, real, missed = self.history.cut()
        scatter = self.steps.cut()
        self.skipped = None
        if (reason := self._unfit(stretch, real, missed)) is not None:
            self._skip(stretch.closes, reason)
        else:
            wanted = {name: self._policies[name] for name in self._rests.awake(self._policies)}
            config = self.config
            each = Round(
                stretch, real, scatter, self._policy, wanted, config.seeds, config.cost_factor
            )
            self._scoring = asyncio.get_running_loop().create_task(self._score(each))

    async def scored(self) -> None:
        """Wait until the window that is being scored is, if one is."""
        if self._scoring is not None:
            await self._scoring

    def _unfit(self, stretch: Stretch, real: Score, missed: int) -> str | None:
        """Why a window is not scored, if it is not."""
        if missed:
            most, names = self.config.most_requests, MOST_KEY_BYTES >> 20
            return (
                f"more came, to it and the window before, than shadow.most_requests = {most}"
                f" or {names} MiB of names of their blocks"
            )
        if real.requests < self.config.least_requests:
            least = self.config.least_requests
            return f"{real.requests} requests came, shadow.least_requests is {least}"
        if self._since > stretch.start:
            return SWAPPED
        if self._scoring is not None and not self._scoring.done():
            return SLOW
        return None

    async def _score(self, each: Round) -> None:
        loop = asyncio.get_running_loop()
        try:
            scored = await loop.run_in_executor(
                self._executor, each.score, self._scorer, self._make_machine
            )
        except NotScored as reason:
            self._skip(each.stretch.closes, str(reason))
            return
        except Exception:
            log.exception("scoring a window failed")
            self._skip(each.stretch.closes, "scoring failed; the log has why")
            return
        verdict = self._trust.judge(
            scored.control.score.whole, scored.real.whole, scored.own, scored.bias
        )
        log.info("window scored", trusted=verdict.trusted, doubts=verdict.doubts)
        faults = {name: x if isinstance(x, str) else None for name, x in scored.others.items()}
        for name, why in faults.items():
            if why is not None:
                log.warning("shadow not scored", shadow=name, why=why)
        others = {**self._rests.told(), **scored.others}
        self._rests.after(faults)
        self.windows += 1
        self._latest = replace(scored, others=others), verdict
        self._verdicts.append((scored.closes, verdict))

    def _skip(self, closes: float, reason: str) -> None:
        log.info("window not scored", why=reason)
        self.skipped = reason
        self._skipped += 1
        self._skips.append((closes, reason))

    # ---------------------------------------------------------------- reading

    @property
    def doubts(self) -> tuple[str, ...]:
        """Why the scores are not to be trusted; none if they are."""
        if self._latest is None:
            return (NOT_YET,)
        scored, verdict = self._latest
        doubts = verdict.doubts
        if not same_policy(scored.policy, self._desk.current):
            doubts = (*doubts, SWAPPED)
        if self._clock.now() - scored.closes > (MOST_OLD + 1) * self.config.window_s:
            doubts = (*doubts, OLD)
        return doubts

    def document(self) -> dict[str, Any]:
        """What is known by now, for people and scripts."""
        now = self._clock.now()
        return {
            "trusted": not self.doubts,
            "doubts": list(self.doubts),
            "trust_within": self.config.trust_within,
            "level": self.config.level,
            "window_s": self.config.window_s,
            "windows": self.windows,
            "skipped": self.skipped,
            "skips": [{"ago_s": now - closes, "why": why} for closes, why in self._skips],
            "scoring": self._scoring is not None and not self._scoring.done(),
            "in_charge": {"policy": self._desk.current.policy, "params": self._desk.current.params},
            "latest": None if self._latest is None else _told(*self._latest, now),
            "policies": [self._about(name) for name in self._policies],
            "errors": [
                {
                    "ago_s": now - closes,
                    "trusted": verdict.trusted,
                    "doubts": verdict.doubts,
                    "measures": _facts(verdict),
                }
                for closes, verdict in self._verdicts
            ],
        }

    def figures(self) -> Figures:
        """The same for dashboards, of the whole only."""
        if self._latest is None:
            return Figures(skipped=self._skipped)
        scored, verdict = self._latest
        names = {IN_CHARGE: scored.control} | dict(scored.others)
        return Figures(
            trusted=not self.doubts,
            windows=self.windows,
            skipped=self._skipped,
            judged=[Judged(e.measure, e.real, e.error, e.stated) for e in verdict.errors],
            scores=[
                (name, measure, value)
                for name, each in names.items()
                if not isinstance(each, str)
                for measure, value in each.score.whole.items()
                if value is not None
            ],
        )

    def _about(self, name: str) -> dict[str, Any]:
        """What a shadow is, and what it was scored in the latest window."""
        policy = self._policies[name]
        about = {"name": name, "policy": policy.policy, "params": policy.params}
        if self._latest is None:
            return about
        return about | self._latest[0].about(name, self.config.seeds)


def _told(scored: Scored, verdict: Verdict, now: float) -> dict[str, Any]:
    """A window: what was predicted of the policy in charge, and what happened."""
    return {
        "ago_s": now - scored.closes,
        "seconds": scored.closes - scored.opens,
        "requests": scored.real.requests,
        "policy": scored.policy.policy,
        "params": scored.policy.params,
        "faults": scored.control.faults,
        "step_bias": scored.bias,
        "errors": _facts(verdict),
        "real": scored.real.whole,
        "predicted": scored.control.score.whole,
        "by_tenant": _sides(scored.real.by_tenant, scored.control.score.by_tenant),
        "by_class": _sides(scored.real.by_class, scored.control.score.by_class),
    }


def _facts(verdict: Verdict) -> dict[str, Any]:
    return {each.measure: each.facts() for each in verdict.errors}


def _sides(real: Any, predicted: Any) -> dict[str, Any]:
    """Each group, as it was and as it was predicted."""
    names = sorted({*real, *predicted})
    return {name: {"real": real.get(name), "predicted": predicted.get(name)} for name in names}
