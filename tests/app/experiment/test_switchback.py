"""An experiment takes turns, measures, and ends when it should: on a clock of its own."""

import asyncio
import random
from collections.abc import Mapping
from typing import Any

import pytest

from app.bridge import DRAINING, NotReady
from app.config.experiment_schema import ExperimentConfig
from app.config.schema import SchedulerConfig
from app.experiment.experiment import BY_HAND, COMPLETE, ENDED, Experiment
from app.experiment.wrong import Wrong
from app.policy_desk import Overtaken
from app.problems import BadConfiguration, Problem
from engine.clock import VirtualClock
from engine.controls import RowControls
from engine.inbox import Submission

ARMS = {"fcfs": {"policy": "fcfs"}, "other": {"policy": "fair-share"}}


class Desk:
    """Swaps at once, and remembers."""

    def __init__(self) -> None:
        self.current = SchedulerConfig()
        self.swaps: list[str] = []
        self.fault: Exception | None = None

    async def swap(self, wanted: SchedulerConfig, by: str, *, instead_of: SchedulerConfig) -> None:
        assert by == "experiment"
        assert instead_of == self.current
        if self.fault is not None and wanted.policy == "fair-share":
            raise self.fault
        self.current = wanted
        self.swaps.append(wanted.policy)


class Trial:
    """An experiment whose seconds pass when it sleeps; `wait(policy)`: seconds to a first token."""

    def __init__(self, wait: Mapping[str, float] | None = None, **config: Any) -> None:
        given = {"arms": ARMS, "period_s": 10.0, "washout_s": 2.0, "most_blocks": 5} | config
        self.clock = VirtualClock()
        self.desk = Desk()
        self.wait = wait or {}
        self.faulty = ""
        self.chance = random.Random(0)
        self.served = 0
        self.arms: list[str | None] = []
        self.experiment = Experiment(
            ExperimentConfig.model_validate(given),
            SchedulerConfig(),
            self.desk,  # type: ignore[arg-type]
            self.clock,
            lambda: Wrong(self.faults, self.faults // 2),
            self.sleep,
        )
        self.faults = 0

    async def sleep(self, seconds: float) -> None:
        self.clock.advance_to(self.clock.now() + seconds)
        self.faults += self.desk.current.policy == self.faulty
        if wait := self.wait.get(self.desk.current.policy):
            self.serve(wait * self.chance.uniform(0.8, 1.2))
        self.arms.append(self.experiment.arm)

    def serve(self, first: float) -> None:
        """A request that came a moment ago, and has its first token: after `first` seconds."""
        self.served += 1
        controls, ledger = RowControls(), self.experiment.ledger
        each = Submission(
            id=self.served, prompt=[1], max_tokens=1, controls=controls, arrival=self.clock.now()
        )
        ledger.arrived(each)
        ledger.came(each, 1, None, self.clock.now())
        ledger.began(each, first, 0)
        ledger.over(each, "served", None)

    def run(self) -> Experiment:
        asyncio.run(self.experiment.run())
        return self.experiment


def test_arms_take_turns_and_the_first_stays_in_charge():
    trial = Trial({"fcfs": 1.0, "fair-share": 1.0}, stop={"worse_by": None})
    experiment = trial.run()
    assert experiment.over == COMPLETE
    assert len(experiment.ledger.blocks) == 5
    assert trial.desk.current.policy == "fcfs"
    assert set(trial.arms) == {"fcfs", "other"}
    assert experiment.arm is None
    assert trial.clock.now() == pytest.approx(10 * 10.0, abs=10.5)


def test_an_effect_is_found_with_its_sign_and_size():
    trial = Trial({"fcfs": 1.0, "fair-share": 0.5}, most_blocks=12)
    (told,) = trial.run().document()["comparisons"]
    found = told["measures"]["ttft_s"]
    assert (told["arm"], told["against"], found["verdict"]) == ("other", "fcfs", "better")
    assert found["low"] < -0.5 < found["high"]
    assert found["change"] == pytest.approx(-0.5, abs=0.05)
    assert told["by_tenant"]["default"]["ttft_s"]["verdict"] == "better"
    assert told["measures"]["itl_s"] == {"verdict": "not measured"}


def test_where_there_is_no_effect_none_is_shown():
    trial = Trial({"fcfs": 1.0, "fair-share": 1.0}, most_blocks=12)
    (told,) = trial.run().document()["comparisons"]
    found = told["measures"]["ttft_s"]
    assert found["verdict"] == "no difference shown"
    assert found["low"] < 0 < found["high"]


def test_an_arm_that_is_surely_worse_ends_it():
    trial = Trial({"fcfs": 1.0, "fair-share": 3.0}, most_blocks=100)
    experiment = trial.run()
    assert experiment.over.startswith("other makes ttft_s worse by")
    assert len(experiment.ledger.blocks) < 10
    assert trial.desk.current.policy == "fcfs"


def test_a_worse_arm_goes_on_where_nothing_is_to_stop_it():
    trial = Trial({"fcfs": 1.0, "fair-share": 3.0}, stop={"worse_by": None})
    assert trial.run().over == COMPLETE


def test_a_limit_ends_it_in_the_middle_of_a_period():
    trial = Trial({"fcfs": 1.0, "fair-share": 9.0}, stop={"limit": 5.0})
    experiment = trial.run()
    assert "ttft_s is" in experiment.over
    assert "under other, beyond the limit of 5" in experiment.over
    assert trial.clock.now() < 25


def test_who_is_not_served_at_all_is_beyond_a_limit_too():
    trial = Trial(stop={"limit": 3.0})
    ledger, clock = trial.experiment.ledger, trial.clock
    inner = trial.sleep

    async def sleep(seconds: float) -> None:
        await inner(seconds)
        if trial.desk.current.policy == "fair-share":
            trial.served += 1
            each = Submission(
                id=trial.served,
                prompt=[1],
                max_tokens=1,
                controls=RowControls(),
                arrival=clock.now(),
            )
            ledger.arrived(each)

    trial.experiment._sleep = sleep
    assert "beyond the limit" in trial.run().over


def test_another_policy_put_in_charge_by_hand_ends_it_and_stays():
    trial = Trial({"fcfs": 1.0, "fair-share": 1.0})
    inner = trial.sleep

    async def sleep(seconds: float) -> None:
        await inner(seconds)
        if trial.clock.now() > 25:
            trial.desk.current = SchedulerConfig(policy="priority")

    trial.experiment._sleep = sleep
    assert trial.run().over == BY_HAND
    assert trial.desk.current.policy == "priority"


def test_a_wish_ends_it_and_the_period_that_was_cut_short_says_nothing():
    trial = Trial({"fcfs": 1.0, "fair-share": 1.0})
    inner = trial.sleep

    async def sleep(seconds: float) -> None:
        await inner(seconds)
        if trial.clock.now() > 25:
            trial.experiment.stop("somebody says so")
            trial.experiment.stop("and somebody else")

    trial.experiment._sleep = sleep
    experiment = trial.run()
    assert experiment.over == "somebody says so"
    assert len(experiment.ledger.blocks) == 1
    assert trial.desk.current.policy == "fcfs"


def test_a_policy_that_is_put_in_charge_by_hand_while_the_next_arm_waits_stays():
    trial = Trial()
    trial.desk.fault = Overtaken()
    experiment = trial.run()
    assert experiment.over == BY_HAND
    assert "fair-share" not in trial.desk.swaps


def test_turns_too_short_to_be_waited_for_are_looked_at_all_the_same():
    trial = Trial(period_s=1e-9, washout_s=0.0, most_blocks=100)
    trial.clock.advance_to(1e9)  # so late that adding a nanosecond changes nothing
    trial.experiment.stop("enough")
    assert trial.run().over == "enough"
    assert len(trial.arms) == 1, "it slept"
    assert len(trial.desk.swaps) <= 2, "and took no second turn"


def test_an_arm_that_cannot_be_put_in_charge_ends_it():
    trial = Trial({"fcfs": 1.0})
    trial.desk.fault = BadConfiguration(Problem("scheduler.policy", "is broken"))
    experiment = trial.run()
    assert experiment.over.startswith("an arm cannot take its turn")
    assert trial.desk.current.policy == "fcfs"


def test_the_document_tells_what_is_going_on():
    trial = Trial({"fcfs": 1.0, "fair-share": 1.0})
    before = trial.experiment.document()
    assert before["running"]
    assert before["in_charge"] is None
    after = trial.run().document()
    assert not after["running"]
    assert after["over"] == COMPLETE
    assert after["blocks"] == 5
    first, second = after["arms"]
    assert (first["arm"], second["policy"]) == ("fcfs", "fair-share")
    assert first["seconds"] == pytest.approx(5 * 8.0, abs=1.5)
    assert first["spanned"] == 0
    assert first["means"]["ttft_s"] == pytest.approx(1.0, abs=0.1)


def test_figures_are_the_same_for_dashboards():
    figures = Trial({"fcfs": 1.0, "fair-share": 2.0}, stop={"worse_by": None}).run().figures()
    (ttft,) = [each for each in figures.changes if each.measure == "ttft_s"]
    assert ttft.low < ttft.estimate < ttft.high
    assert (figures.running, figures.blocks, figures.arm) == (False, 5, None)


def test_what_the_guard_had_to_mend_is_told_of_the_arm_whose_policy_did_wrong():
    trial = Trial({"fcfs": 1.0, "fair-share": 1.0}, most_blocks=2)
    trial.faulty = "fair-share"
    first, second = trial.run().document()["arms"]
    assert (first["faults"], first["fallback_steps"]) == (0, 0)
    # each look at its two turns of ten seconds, and half as many steps
    assert (second["faults"], second["fallback_steps"]) == (2 * 40, 40)


def test_a_server_that_drains_ends_it_and_nothing_has_gone_wrong():
    trial = Trial({"fcfs": 1.0, "fair-share": 1.0})
    trial.desk.fault = NotReady(DRAINING)
    experiment = trial.run()
    assert experiment.over == ENDED
    assert trial.desk.swaps == []
