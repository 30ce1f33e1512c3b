"""Simulated switchbacks are read by the rules of live ones, and compared with them."""

import math
from pathlib import Path

import pytest

from app.config import load_config
from app.config.experiment_schema import ExperimentConfig
from app.experiment.comparison import comparison
from loadtest.houses import house_of
from loadtest.profiles import find_profile
from loadtest.switchback import server_config
from loadtest.switchback.agreement import Found, Row, rows
from loadtest.switchback.predicted import simulated_blocks
from loadtest.switchback.workload import NOISY, QUIET, Traffic, workload

ARMS = {"a": {"policy": "fcfs"}, "b": {"policy": "fair-share"}}
EXPERIMENT = ExperimentConfig.model_validate({"arms": ARMS, "period_s": 30.0, "washout_s": 5.0})


def test_the_same_seed_brings_the_same_traffic_in_order():
    once, again = workload(60.0, 3), workload(60.0, 3)
    assert once == again != workload(60.0, 4)
    assert [each.at for each in once] == sorted(each.at for each in once)
    assert {each.tenant for each in once} == {NOISY, QUIET}
    assert once[-1].at < 60.0


def test_bursts_come_whole():
    noisy = [each.at for each in workload(60.0, 1, Traffic(burst=5)) if each.tenant == NOISY]
    assert all(noisy.count(at) == 5 for at in noisy)


@pytest.fixture(scope="module")
def blocks():
    """Four blocks on a machine that a burst keeps busy for seconds."""
    config = load_config(server_config())
    profile = find_profile("vtc_a10g")
    houses = [
        house_of(
            config.model_copy(update={"scheduler": config.scheduler.model_copy(update=dict(arm))}),
            profile,
        )
        for arm in EXPERIMENT.arms.values()
    ]
    arrivals = workload(240.0, 0, Traffic(burst=4))
    return arrivals, simulated_blocks(houses, arrivals, EXPERIMENT, 4, seed=0)


def test_each_block_has_each_arm_over_what_is_measured_of_a_period(blocks):
    arrivals, found = blocks
    assert [set(block) for block in found] == [{0, 1}] * 4
    measured = [a for a in arrivals if a.at % 30.0 >= 5.0]
    assert sum(each.requests for block in found for each in block.values()) == len(measured)
    assert {each.seconds for block in found for each in block.values()} == {25.0}


def test_fair_share_lets_the_quiet_tenant_wait_less(blocks):
    told = comparison(blocks[1], 1, 0.95)
    assert told["by_tenant"][QUIET]["ttft_s"]["change"] < -0.3


def change(value: float, low: float, high: float | None) -> dict:
    return {"verdict": "", "change": value, "low": low, "high": high}


def experiment(value: float, low: float = -0.9, high: float | None = 0.9) -> dict:
    return {
        "measures": {"ttft_s": change(value, low, high)},
        "by_tenant": {QUIET: {"ttft_s": change(value, low, high)}},
    }


def test_what_was_found_agrees_if_both_may_be_true():
    simulated = [experiment(-0.5 + place / 100) for place in range(-10, 11)]
    found = {(row.of, row.measure): row for row in rows(experiment(-0.45), simulated)}
    assert found["all", "ttft_s"].agrees
    assert found[QUIET, "ttft_s"].agrees
    assert found["all", "itl_p99_s"].agrees is None
    (unsure, *_) = rows(experiment(0.3), simulated)
    assert unsure.agrees, "it may be what simulations find"
    (sure, *_) = rows(experiment(0.3, 0.2, 0.4), simulated)
    assert not sure.agrees, "it is sure of something else"


def test_an_end_that_was_infinite_is_so_again_after_json():
    (row, *_) = rows(experiment(-0.5, high=None), [experiment(-0.5)])
    assert row.live.high == math.inf


def test_facts_are_plain():
    row = Row("all", "ttft_s", Found(-0.5, -0.6, -0.4), None)
    assert row.facts() == {
        "of": "all",
        "measure": "ttft_s",
        "live": {"change": -0.5, "low": -0.6, "high": -0.4},
        "simulated": None,
        "agrees": None,
    }


def test_the_server_of_the_check_can_be_configured():
    assert isinstance(server_config(), Path)
    assert [*load_config(server_config()).experiment.arms] == ["fcfs", "fair-share"]
