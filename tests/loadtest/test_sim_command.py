"""`octavo sim`: keys that scripts rely on, the same bytes again, and what cannot be simulated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from app.cli import main

VTC_ARENA = Path(__file__).parents[3] / "shared/traces/arrivals/vtc_arena_10min.csv.gz"

FIGURES = {
    "requests",
    "completed",
    "shed",
    "ttft_s",
    "itl_s",
    "e2e_s",
    "output_tok_s",
    "goodput_req_s",
    "slo_attainment",
    "preemptions",
    "recomputed_tokens",
    "recomputed_fraction",
    "max_bypass",
    "prefix_hit_rate",
}


def sim(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["sim", *arguments], catch_exceptions=False)


@pytest.fixture
def trace(tmp_path: Path) -> str:
    rows = [f"{0.2 * n},t{n % 2},{20 + n},{5 + n % 7},c{n % 3}" for n in range(20)]
    path = tmp_path / "trace.csv"
    path.write_text("\n".join(["arrival_s,tenant,prompt_tokens,output_tokens,class", *rows]))
    return str(path)


def test_json_has_the_keys_that_scripts_read(trace: str) -> None:
    result = sim("--trace", trace, "--json")
    assert result.exit_code == 0
    answer = json.loads(result.stdout)
    assert set(answer) >= FIGURES | {
        "policy",
        "by_tenant",
        "by_class",
        "jain",
        "service_gap",
        "prediction_error",
        "forced_admissions",
    }
    assert answer["policy"] == "fcfs"
    assert answer["requests"] == answer["completed"] == 20
    for latency in ("ttft_s", "itl_s", "e2e_s"):
        assert answer[latency].keys() == {"mean", "p50", "p95", "p99"}
        assert answer[latency]["p50"] <= answer[latency]["p95"] <= answer[latency]["p99"]
    assert answer["by_tenant"].keys() == {"t0", "t1"}
    assert answer["by_class"].keys() == {"c0", "c1", "c2"}
    for group in (*answer["by_tenant"].values(), *answer["by_class"].values()):
        assert set(group) >= FIGURES


def test_the_same_arguments_print_the_same_bytes(trace: str) -> None:
    arguments = ("--trace", trace, "--noise", "0.2", "--json")
    assert sim(*arguments).stdout == sim(*arguments).stdout
    assert sim(*arguments).stdout != sim(*arguments, "--seed", "1").stdout


def test_tables_show_latencies_classes_and_tenants_and_no_bar_off_a_terminal(trace: str) -> None:
    result = sim("--trace", trace, "--profile", "h200-llama-3.1-8b")
    assert result.exit_code == 0
    for words in ("time to first token", "20 completed", "estimate", "t0", "c2", "Jain"):
        assert words in result.stdout
    assert result.stderr == ""


def test_what_never_fits_the_pool_is_shed_and_speed_makes_it_harder(trace: str) -> None:
    answer = json.loads(sim("--trace", trace, "--json", "--pool-tokens", "32").stdout)
    assert answer["shed"] > 0
    assert answer["completed"] + answer["shed"] == 20
    slow, fast = (
        json.loads(sim("--trace", trace, "--json", "--speed", speed, "--rows", "1").stdout)
        for speed in ("0.1", "100")
    )
    assert slow["ttft_s"]["mean"] < fast["ttft_s"]["mean"]
    assert slow["duration_s"] > fast["duration_s"]


def test_promises_turn_completed_requests_into_goodput(trace: str) -> None:
    answer = json.loads(sim("--trace", trace, "--json", "--ttft", "0.001").stdout)
    assert answer["goodput_req_s"] == 0


def test_a_policy_may_come_from_anywhere_with_parameters(trace: str) -> None:
    policy = "support.policy_samples:Sample"
    result = sim("--trace", trace, "--policy", policy, "--json", "--params", "window=3")
    assert json.loads(result.stdout)["params"] == {"window": 3}


def test_a_report_is_a_page_with_the_figures_and_the_command(trace: str, tmp_path: Path) -> None:
    path = tmp_path / "reports" / "run.html"
    result = sim("--trace", trace, "--profile", "h200-llama-3.1-8b", "--html", str(path))
    assert result.exit_code == 0
    text = path.read_text()
    for words in ("not a measurement", "fcfs on trace.csv", "By tenant", "t1", "octavo"):
        assert words in text
    unwritable = sim("--trace", trace, "--html", str(tmp_path))
    assert unwritable.exit_code == 2
    assert "--html" in unwritable.stderr


def test_steps_scatter_as_was_measured_where_the_profile_says_how(trace: str) -> None:
    measured = json.loads(sim("--trace", trace, "--noise", "measured", "--json").stdout)
    assert measured["noise"] == "measured"
    assert 0.01 < measured["prediction_error"] < 0.1
    assert json.loads(sim("--trace", trace, "--json").stdout)["prediction_error"] == 0
    result = sim("--trace", trace, "--noise", "measured", "--profile", "h200-llama-3.1-8b")
    assert result.exit_code == 2
    assert "--noise: the profile has no residuals" in result.stderr


def test_a_configuration_says_what_is_simulated(trace: str, tmp_path: Path) -> None:
    config = tmp_path / "house.yaml"
    config.write_text(
        "engine: {backend: simulated, max_rows: 3}\nscheduler: {policy: fair-share}\n"
    )
    given = ("--config", str(config), "--set", "engine.max_step_tokens=77")
    answer = json.loads(sim("--trace", trace, "--json", *given).stdout)
    assert (answer["policy"], answer["rows"], answer["step_tokens"]) == ("fair-share", 3, 77)
    assert answer["profile"] == "engine.simulated"
    assert answer["config"] == str(config)
    assert answer["pool_tokens"] == 4096 * 16
    slower = json.loads(sim("--trace", trace, "--json", *given, "--profile", "vtc_a10g").stdout)
    assert slower["e2e_s"]["mean"] > answer["e2e_s"]["mean"]


def test_what_the_configuration_says_is_no_option(trace: str) -> None:
    own = ("--set", "engine.backend=simulated")
    for option, value, key in (
        ("--rows", "256", "engine.max_rows=VALUE"),
        ("--policy", "slo", "scheduler.policy=VALUE"),
        ("--e2e", "1", "there is no key"),
    ):
        result = sim("--trace", trace, *own, option, value)
        assert result.exit_code == 2
        assert f"{option}: the configuration says that" in result.stderr
        assert key in result.stderr


def test_a_rate_is_offered_whatever_the_trace_s(trace: str) -> None:
    def duration(*arguments: str) -> float:
        answer = json.loads(sim("--trace", trace, "--json", *arguments).stdout)
        return float(answer["duration_s"])

    assert duration("--rate", "1") == pytest.approx(19, rel=0.1)
    assert duration("--rate", "1", "--burstiness", "1") != duration("--rate", "1")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--policy", "fcf"), "--policy: unknown policy fcf; did you mean fcfs?"),
        (("--params", "x=1"), "--params x: unknown parameter"),
        (("--params", "x"), "expected key=value"),
        (("--profile", "a11g"), "no profile and no file a11g"),
        (("--rows", "100", "--step-tokens", "7"), "--rows: 100 + 16"),
        (("--params", "backfill=-1"), "Error: --params: policy fcfs refuses them: "),
        (("--speed", "0"), "--speed"),
        (("--speed", "2", "--rate", "1"), "--speed"),
        (("--burstiness", "2"), "--burstiness: arrivals are drawn with a --rate"),
        (("--set", "engine.max_row=1"), "engine.max_row"),
        (("--set", "engine.max_rows=1"), "--profile: the backend is not simulated"),
        (("--speed", "nan"), "'--speed': nan is no finite number"),
        (("--speed", "1e-300"), "--speed: a request cannot arrive at "),
        (("--ttft", "nan"), "'--ttft': nan is no finite number"),
        (("--noise", "nan"), "'--noise': nan is no finite number"),
        (("--seed", str(2**63)), "--seed"),
        (("--pool-tokens", "15"), "--pool-tokens"),
        (("--pool-tokens", str(10**20)), "--pool-tokens"),
    ],
)
def test_what_cannot_be_simulated_is_said(
    trace: str, arguments: tuple[str, ...], message: str
) -> None:
    result = sim("--trace", trace, *arguments)
    assert result.exit_code == 2
    assert message in result.stderr


def test_a_bad_row_is_named(tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    path.write_text("arrival_s,tenant,prompt_tokens,output_tokens\n0,a,1,none\n")
    result = sim("--trace", str(path))
    assert result.exit_code == 2
    assert "bad.csv:2: output_tokens: expected an integer" in result.stderr


def test_help_defines_the_keys_and_shows_an_example() -> None:
    text = sim("--help").output
    assert "octavo sim --policy fcfs --trace" in text
    for key in FIGURES:
        assert key in text


@pytest.mark.slow
@pytest.mark.skipif(not VTC_ARENA.exists(), reason="the published trace is not here")
def test_in_a_published_overload_light_tenants_wait_as_long_as_heavy_ones_under_fcfs() -> None:
    """The published means on an A10G are 41 s for the four heaviest and 55 s for the others."""
    answer = json.loads(sim("--trace", str(VTC_ARENA), "--speed", "1.2", "--json").stdout)
    assert answer["completed"] == 1500
    tenants = sorted(answer["by_tenant"].values(), key=lambda figures: -figures["requests"])

    def mean(group: list[dict[str, Any]]) -> float:
        total = sum(figures["requests"] * figures["ttft_s"]["mean"] for figures in group)
        return total / sum(figures["requests"] for figures in group)

    assert 20 < mean(tenants[:4]) < mean(tenants[4:]) * 1.1 < 120
