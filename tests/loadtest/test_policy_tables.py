"""`octavo policy-tables` compares policies on published traces, and what the tables show holds."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from app.cli import main
from loadtest.policy_tables import (
    ARENA,
    AZURE,
    TBT_S,
    beside_heavy_tenants,
    beside_long_prompts,
    capacity,
    in_two_classes,
    markdown,
    with_long_prompts,
    with_two_classes,
)
from loadtest.traces import Arrival, at_speed, read_arrivals

TRACES = Path(__file__).parents[3] / "shared/traces/arrivals"

needs_traces = pytest.mark.skipif(not TRACES.is_dir(), reason="the published traces are not here")


def steady(count: int, gap: float = 0.1) -> list[Arrival]:
    return [Arrival(at=gap * i, prompt_tokens=900, output_tokens=60) for i in range(count)]


def tables(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["policy-tables", *arguments], catch_exceptions=False)


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    """A folder with a small trace under the name of the published one."""
    with gzip.open(tmp_path / AZURE, "wt", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["TIMESTAMP", "ContextTokens", "GeneratedTokens"])
        for i in range(40):
            rows.writerow([f"2023-11-16 18:15:{i % 60:02d}.0000000", 300 + 7 * i, 20])
    with gzip.open(tmp_path / ARENA, "wt", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["arrival_s", "tenant", "prompt_tokens", "output_tokens"])
        for i in range(40):
            rows.writerow([0.1 * i, f"t{min(i % 8, 5)}", 50 + i, 20])
    return tmp_path


def test_it_prints_a_markdown_table_for_each_experiment(traces: Path) -> None:
    result = tables(str(traces), "--requests", "20")
    assert result.exit_code == 0
    assert "decode-priority, 25 ms" in result.stdout
    assert "| load | policy | goodput_req_s |" in result.stdout
    assert "| policy | heavy_ttft_mean_s | light_ttft_mean_s |" in result.stdout
    assert "20 requests." in result.stdout
    assert result.stderr == ""


def test_json_has_the_rows_by_experiment_and_only_those_asked_for(traces: Path) -> None:
    result = tables(str(traces), "--requests", "12", "--only", "slo", "--json")
    answer = json.loads(result.stdout)
    assert list(answer) == ["slo"]
    assert answer["slo"][0]["policy"] == "fcfs"
    assert all(row["goodput_req_s"] > 0 for row in answer["slo"])


def test_a_folder_without_the_trace_is_an_error_that_names_it(tmp_path: Path) -> None:
    result = tables(str(tmp_path))
    assert result.exit_code == 2
    assert AZURE in result.output


def test_capacity_is_the_speed_at_which_a_trace_arrives_as_fast_as_it_is_computed() -> None:
    arrivals = steady(200)
    speed = capacity(arrivals)
    assert speed > 1
    assert capacity(list(at_speed(arrivals, speed))) == pytest.approx(1.0)


def test_long_prompts_come_every_ten_seconds_in_order_of_arrival() -> None:
    mixed = with_long_prompts(steady(350))
    assert [each.at for each in mixed if each.prompt_tokens == 16_000] == [10.0, 20.0, 30.0]
    assert mixed == sorted(mixed, key=lambda each: each.at)


def test_seven_of_ten_requests_are_interactive() -> None:
    classes = [each.slo_class for each in in_two_classes(steady(2000))]
    assert 1300 < classes.count("interactive") < 1500
    assert set(classes) == {"interactive", "batch"}


def test_a_table_has_a_line_for_each_row() -> None:
    rows = [{"policy": "a", "s": 1.23456}, {"policy": "b", "s": 2}]
    assert markdown(rows) == "| policy | s |\n| --- | --- |\n| a | 1.235 |\n| b | 2 |"


@pytest.mark.slow
@pytest.mark.timeout(600)
@needs_traces
def test_decode_priority_keeps_its_target_at_no_longer_waits_than_any_fixed_budget_that_does() -> (
    None
):
    arrivals = read_arrivals(TRACES / AZURE)[:1500]
    ours, *fixed = beside_long_prompts(arrivals, budgets=(480, 512, 544, 576))
    most = 1100 * TBT_S
    assert ours["itl_p99_ms"] <= most
    good = [row["ttft_p99_s"] for row in fixed if row["itl_p99_ms"] <= most]
    assert 0 < len(good) < len(fixed), "the sweep does not reach beyond the target"
    assert ours["ttft_p99_s"] <= min(good)


@pytest.mark.slow
@pytest.mark.timeout(600)
@needs_traces
def test_slo_serves_no_less_than_fcfs_below_capacity_and_much_more_beyond() -> None:
    arrivals = read_arrivals(TRACES / AZURE)[:1500]
    rows = list(with_two_classes(arrivals, loads=(0.85, 1.0, 1.15, 1.3)))
    goodput = {(row["load"], row["policy"]): row["goodput_req_s"] for row in rows}
    for load, least in ((0.85, 0.99), (1.0, 0.99), (1.15, 1.2), (1.3, 1.2)):
        for policy in ("slo", "slo, late: reject"):
            assert goodput[load, policy] >= least * goodput[load, "fcfs"], (load, policy)


@needs_traces
@pytest.mark.slow
def test_sharing_cuts_the_wait_of_light_tenants_and_costs_heavy_ones_less_than_twice() -> None:
    rows = {row["policy"]: row for row in beside_heavy_tenants(read_arrivals(TRACES / ARENA))}
    before = rows.pop("fcfs")
    assert 40 < before["light_ttft_mean_s"] < 70
    for name, row in rows.items():
        times = 15 if name == "fair-share" else 5
        assert row["light_ttft_mean_s"] * times < before["light_ttft_mean_s"]
        assert row["heavy_ttft_mean_s"] < 2 * before["heavy_ttft_mean_s"]
