"""Arms that get the same requests: exactly alike where they are, and paired where they are not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.comparisons import short_requests, small_arm

from loadtest.ab.experiment import Experiment, Result, run
from loadtest.ab.groups import ALL, Group, Row, parse_row
from loadtest.ab.verdicts import Verdict
from loadtest.ab.workers import workers
from loadtest.ab.workload import Beside, Workload

PRIMARY = [parse_row("ttft_s.mean"), parse_row("itl_s.p99")]


def result(experiment: Experiment, seeds: int = 6, processes: int = 1) -> Result:
    with workers(processes) as crew:
        return run(experiment, seeds, crew)


def experiment(*settings: str, workload: Workload | None = None, count: int = 40) -> Experiment:
    """fcfs against fcfs with other settings."""
    arms = [small_arm("a"), small_arm("b", *settings)]
    return Experiment(arms, short_requests(count), workload or Workload())


def test_the_same_configuration_with_the_same_noise_differs_by_exactly_nothing() -> None:
    compared = result(experiment()).comparison(1, PRIMARY)
    assert len(compared.differences) > 50
    for each in compared.differences:
        assert (each.estimate.mean, each.estimate.low, each.estimate.high) == (0, 0, 0)
        assert each.verdict is Verdict.NO_DIFFERENCE
    for pairs in compared.requests.values():
        assert pairs.faster == pairs.slower == 0
        assert pairs.pairs > 0


def test_noise_of_its_own_makes_the_same_configuration_differ() -> None:
    arms = [small_arm("a"), small_arm("b", stream="own")]
    compared = result(Experiment(arms, short_requests(40))).comparison(1, PRIMARY)
    assert compared.primary[0].estimate.spread > 0


def test_primary_figures_come_first_then_those_of_all_then_those_of_groups() -> None:
    compared = result(experiment("engine.max_rows=2")).comparison(1, PRIMARY)
    assert [each.row for each in compared.primary] == PRIMARY
    kinds = [each.row.group.kind for each in compared.others]
    assert kinds == sorted(kinds)
    groups = {each.row.group for each in compared.differences}
    assert groups == {ALL, *(Group("class", f"c{n}") for n in range(2)), *tenants(3)}


def tenants(count: int) -> list[Group]:
    return [Group("tenant", f"t{n}") for n in range(count)]


def test_fewer_rows_are_worse_and_the_pairs_say_whose_requests_waited() -> None:
    compared = result(experiment("engine.max_rows=1"), seeds=10).comparison(1, PRIMARY)
    first = compared.primary[0]
    assert first.verdict is Verdict.WORSE
    assert first.second > first.first
    assert first.relative == pytest.approx(first.second / first.first - 1)
    assert first.estimate.mean == pytest.approx(first.second - first.first)
    waits = compared.requests["ttft_s"]
    assert waits.slower > 0.9
    assert waits.estimate.mean == pytest.approx(first.estimate.mean)
    assert waits.quantiles["p1"] <= waits.quantiles["p50"] <= waits.quantiles["p99"]


def test_a_seed_is_the_same_for_all_arms_and_other_seeds_are_other_traces() -> None:
    compared = experiment()
    blocks = result(compared).blocks
    assert compared.seed(blocks, 1) == compared.seed(blocks, 1)
    assert compared.seed(blocks, 1) != compared.seed(blocks, 2)


@pytest.mark.slow
def test_processes_give_the_same_as_one() -> None:
    alone, many = (result(experiment("engine.max_rows=2"), 5, n) for n in (1, 2))
    assert alone.comparison(1, PRIMARY).differences == many.comparison(1, PRIMARY).differences


def test_requests_at_fixed_times_come_beside_each_seed_whatever_its_blocks() -> None:
    beside = Beside(every_s=1.0, prompt_tokens=900, output_tokens=2)
    compared = experiment(workload=Workload(beside=beside))
    offered = compared.seed(result(compared).blocks, 0)
    long = [each.at for each in offered if each.prompt_tokens == 900]
    assert long == [float(n) for n in range(1, len(long) + 1)]
    assert len(long) == int(offered[-1].at)


def test_the_heaviest_tenants_are_a_group_besides_all_others() -> None:
    busy = [replace(each, tenant="big") for each in short_requests(20)]
    arrivals = sorted([*busy, *short_requests(30, seed=2)], key=lambda each: each.at)
    arms = [small_arm("a"), small_arm("b", "scheduler.policy=fair-share")]
    compared = result(Experiment(arms, arrivals, Workload(heaviest=1))).comparison(1, PRIMARY)
    groups = {each.row.group for each in compared.differences}
    assert Group("share", "heaviest") in groups
    rows = {each.row: each.first for each in compared.differences}
    heavy, big = (
        rows[Row("ttft_s.mean", g)] for g in (Group("share", "heaviest"), Group("tenant", "big"))
    )
    assert heavy == big


def test_static_batches_waste_rows_and_reserved_blocks_waste_memory() -> None:
    workload = Workload(asked_tokens=200)
    arrivals = workload.prepared(short_requests(40))
    static = small_arm("static", "scheduler.policy=static-batch", "scheduler.params.size=8")
    reserve = small_arm("reserve", "engine.allocation=reserve")
    played = result(Experiment([small_arm("a"), static, reserve], arrivals, workload), 5).played

    def mean(arm: int, metric: str) -> float:
        return float(np.mean([each.figures[Row(metric)] for each in played[arm]]))

    assert mean(0, "wasted_rows") == 0 < mean(1, "wasted_rows") < 1
    assert mean(0, "wasted_kv") < 0.5 < mean(2, "wasted_kv") < 1
    assert mean(0, "running") > 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("ttft", "ttft: expected one of ttft_s.mean"),
        ("jain@tenant:a", "jain: expected one of"),
        ("shed@team:a", "team:a: expected class:NAME"),
        ("shed@tenant:", "expected class:NAME"),
    ],
)
def test_a_row_that_there_is_not_is_said(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse_row(text)


def test_rows_are_written_as_they_are_read() -> None:
    for text in ("ttft_s.mean", "shed@tenant:a:b", "met@share:heaviest"):
        assert str(parse_row(text)) == text
