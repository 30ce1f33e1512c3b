"""Windows are cut, scored when they are fit for it, and judged: on a clock of its own."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
import structlog
from support.shadowed import MACHINE, LiveHouse, traffic

from app.config.schema import SchedulerConfig
from app.config.shadow_schema import ShadowConfig
from app.policy_loader import ConfiguredPolicy
from app.shadow.job import Job
from app.shadow.playing import play
from app.shadow.scorer import NotScored, Simulated
from app.shadow.shadow import MOST_OLD, NOT_YET, OLD, SLOW, SWAPPED, Shadow

POLICIES = {"shortest": {"policy": "shortest-first"}}


class Desk:
    """Knows who is in charge."""

    def __init__(self) -> None:
        self.current = SchedulerConfig()


class Here:
    """Scores in this process, all but what cannot be scored."""

    def __init__(self) -> None:
        self.unfit: set[str] = set()
        self.closed = False

    def score(self, job: Job) -> Simulated:
        if job.policy.policy in self.unfit:
            raise NotScored("took longer than 1 s")
        machine = replace(job.machine, cost=job.machine.cost.times(job.slower))
        played = play(job.stretch, ConfiguredPolicy(job.policy), machine, 0, job.weather)
        return Simulated(played.score, dict.fromkeys(played.score.whole, 0.0), played.faults)

    def close(self) -> None:
        self.closed = True


class Trial:
    """A shadow of a "live" engine that is itself simulated, whose time passes while it sleeps."""

    def __init__(self, coming: Any = None, **config: Any) -> None:
        given = {"policies": POLICIES, "window_s": 10.0, "seeds": 1} | config
        self.config = ShadowConfig.model_validate(given)
        self.live = LiveHouse(traffic(40.0, every_s=0.12) if coming is None else coming)
        self.desk = Desk()
        self.scorer = Here()
        self.shadow = Shadow(
            self.config,
            SchedulerConfig(),
            self.desk,  # type: ignore[arg-type]
            self.live.clock,
            self.machine,
            self.scorer,  # type: ignore[arg-type]
            self.sleep,
        )
        self.shadow.history, self.shadow.steps = self.live.history, self.live.steps
        self.swaps: dict[float, str] = {}

    def machine(self) -> Any:
        return MACHINE

    async def sleep(self, seconds: float) -> None:
        until = self.live.clock.now() + seconds
        self.live.run(until)
        for at in [at for at in self.swaps if at <= until]:
            self.desk.current = SchedulerConfig(policy=self.swaps.pop(at))

    def windows(self, number: int) -> Shadow:
        """Let so many windows pass, and each be scored."""

        async def pass_by() -> None:
            for _ in range(number):
                await self.shadow.watch(self.live.clock.now() + self.config.window_s)
                self.shadow.cut()
                await self.shadow.scored()

        asyncio.run(pass_by())
        return self.shadow


def test_what_is_in_charge_is_predicted_and_trusted_and_others_are_beside_it():
    shadow = Trial().windows(3)
    told = shadow.document()
    assert (told["trusted"], told["doubts"], told["windows"]) == (True, [], 3)
    for error in told["latest"]["errors"].values():
        assert abs(error["error"]) < 0.05
        assert error["within"]
    assert told["latest"]["step_bias"] == pytest.approx({"decode": 0.0, "prompt": 0.0}, abs=0.01)
    assert len(told["errors"]) == 3
    (shortest,) = told["policies"]
    assert (shortest["name"], shortest["policy"]) == ("shortest", "shortest-first")
    assert abs(shortest["measures"]["ttft_s"]["change"]) < 0.3
    assert {*shortest["by_tenant"]} == {"a", "b"}


def test_with_a_falsified_cost_model_nothing_is_trusted_from_the_first_window_on():
    trial = Trial(cost_factor=2.0)
    for window in (1, 2, 3):
        told = trial.windows(1).document()
        assert told["windows"] == window
        assert not told["trusted"]
        assert any("off by" in doubt for doubt in told["doubts"])
    assert "stated error" in " ".join(Trial(cost_factor=2.0).windows(1).doubts)
    assert "stated error" in " ".join(Trial(cost_factor=0.5).windows(1).doubts)


def test_before_the_first_window_nothing_is_trusted():
    trial = Trial()
    told = trial.shadow.document()
    assert (told["trusted"], told["doubts"], told["latest"]) == (False, [NOT_YET], None)
    assert told["policies"] == [{"name": "shortest", "policy": "shortest-first", "params": {}}]
    assert trial.shadow.figures().windows == 0


def test_scores_are_trusted_no_longer_once_nothing_has_been_scored_for_some_windows():
    trial = Trial(traffic(10.0, every_s=0.12))  # and nobody comes after that
    assert trial.windows(1 + MOST_OLD).figures().trusted
    figures = trial.windows(1).figures()
    assert not figures.trusted
    assert trial.shadow.doubts == (OLD,)
    assert (figures.windows, figures.skipped) == (1, MOST_OLD + 1)


def test_figures_are_the_same_for_dashboards():
    figures = Trial().windows(1).figures()
    assert figures.trusted
    assert [each.measure for each in figures.judged] == ["ttft_s", "itl_p99_s"]
    assert {policy for policy, _, _ in figures.scores} == {"in_charge", "shortest"}


def test_a_window_with_few_requests_is_not_scored():
    shadow = Trial(traffic(10.0, every_s=2.0)).windows(1)
    assert shadow.windows == 0
    assert "shadow.least_requests is 20" in shadow.document()["skipped"]


def test_a_window_with_more_than_may_be_kept_is_not_scored():
    trial = Trial()
    trial.live.history._most = 30
    assert "shadow.most_requests" in trial.windows(1).document()["skipped"]


def test_windows_in_which_the_policy_changed_are_not_scored():
    trial = Trial()
    trial.windows(1)
    trial.swaps[15.0] = "shortest-first"
    assert trial.windows(1).skipped == SWAPPED, "its window has two"
    assert SWAPPED in trial.shadow.doubts, "and the one before was of another"
    assert trial.windows(1).skipped == SWAPPED, "simulations of it begin in the one before"
    assert trial.windows(1).skipped is None


def test_a_shadow_that_cannot_be_scored_says_why_and_the_others_are():
    trial = Trial(policies={**POLICIES, "slow": {"policy": "priority"}})
    trial.scorer.unfit.add("priority")
    with structlog.testing.capture_logs() as lines:
        told = trial.windows(1).document()
    (warned,) = [line for line in lines if line["log_level"] == "warning"]
    assert (warned["shadow"], warned["why"]) == ("slow", "took longer than 1 s")
    assert told["trusted"]
    fine, slow = told["policies"]
    assert slow["fault"] == "took longer than 1 s"
    assert fine["fault"] is None


def test_a_shadow_that_never_can_be_scored_is_tried_ever_more_seldom():
    slow = {"slow": {"policy": "priority"}}
    trial = Trial(traffic(60.0, every_s=0.12), policies=POLICIES | slow, window_s=5.0)
    trial.scorer.unfit.add("priority")
    tried = []
    for window in range(8):
        fine, slow = trial.windows(1).document()["policies"]
        assert fine["fault"] is None
        if slow["fault"] == "took longer than 1 s":
            tried.append(window)
        else:
            assert slow["fault"].startswith("took longer than 1 s; left out for ")
    assert tried == [0, 2, 5]
    trial.scorer.unfit.clear()
    faults = [trial.windows(1).document()["policies"][1]["fault"] for _ in range(3)]
    assert [fault is None for fault in faults] == [False, False, True]


def test_if_what_is_in_charge_cannot_be_scored_nothing_is():
    trial = Trial()
    trial.scorer.unfit.add("fcfs")
    told = trial.windows(1).document()
    assert (told["windows"], told["skipped"]) == (0, "took longer than 1 s")
    assert not told["trusted"]


def test_a_window_that_comes_while_the_one_before_is_being_scored_is_left_out():
    trial = Trial()

    async def two_at_once() -> None:
        for _ in range(2):
            await trial.shadow.watch(trial.live.clock.now() + 10.0)
            trial.shadow.cut()
        assert trial.shadow.skipped == SLOW
        await trial.shadow.scored()

    asyncio.run(two_at_once())
    assert trial.shadow.windows == 1


async def test_closing_ends_the_task_and_the_process():
    trial = Trial()
    trial.shadow._sleep = asyncio.sleep
    trial.shadow.start()
    await asyncio.sleep(0)
    trial.shadow.close()
    with pytest.raises(asyncio.CancelledError):
        await trial.shadow._task
    assert trial.scorer.closed
