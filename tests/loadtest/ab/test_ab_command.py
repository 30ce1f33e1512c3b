"""`octavo ab`: what scripts read, what people read, what ends with which code."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from app.cli import main
from loadtest.ab.tables import percent

EXAMPLES = Path(__file__).parents[3] / "loadtest/ab/examples"

KEYS = {
    "arms",
    "trace",
    "speed",
    "rate",
    "workload",
    "profile",
    "noise",
    "seeds",
    "level",
    "comparisons",
}
DIFFERENCE = {
    "metric",
    "of",
    "name",
    "primary",
    "first",
    "second",
    "difference",
    "low",
    "high",
    "relative",
    "p",
    "verdict",
    "seeds",
    "spread",
    "seeds_for_5_percent",
}


def ab(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["ab", *arguments], catch_exceptions=False)


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, ...]:
    """Two configurations and a trace, in the order of the command line."""
    rows = [f"{0.1 * n},t{n % 2},{20 + 40 * (n % 5)},{5 + n % 7},c{n % 3}" for n in range(30)]
    (tmp_path / "trace.csv").write_text(
        "\n".join(["arrival_s,tenant,prompt_tokens,output_tokens,class", *rows])
    )
    (tmp_path / "wide.yaml").write_text("engine: {max_rows: 16}\n")
    (tmp_path / "narrow.yaml").write_text("engine: {max_rows: 1}\n")
    options = ("--profile", "vtc_a10g", "--pool-tokens", "10000", "--seeds", "5", "--jobs", "1")
    arms = (str(tmp_path / "wide.yaml"), str(tmp_path / "narrow.yaml"))
    return (*arms, "--trace", str(tmp_path / "trace.csv"), *options)


def answered(*arguments: str) -> dict[str, Any]:
    result = ab(*arguments, "--json")
    assert result.exit_code == 0
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_json_has_the_keys_that_help_defines(files: tuple[str, ...]) -> None:
    answer = answered(*files)
    assert set(answer) >= KEYS
    (comparison,) = answer["comparisons"]
    assert (comparison["first"], comparison["second"]) == ("wide", "narrow")
    assert comparison["load"] is None
    assert set(comparison["blocks"]) == {"requests", "busy_s", "cut"}
    for each in comparison["differences"]:
        assert set(each) == DIFFERENCE
        assert each["seeds"] <= 5
    first = comparison["differences"][0]
    assert first["metric"] == "ttft_s.mean"
    assert first["verdict"] == "worse"
    assert first["low"] <= first["difference"] <= first["high"]
    assert comparison["requests"]["ttft_s"]["pairs"] == 150
    text = " ".join(ab("--help").output.split())
    for key in KEYS | DIFFERENCE | {"pairs", "faster", "slower", "busy_s"}:
        assert key in text


def test_the_same_arguments_print_the_same_bytes(files: tuple[str, ...]) -> None:
    arguments = (*files, "--noise", "0.2", "--json")
    assert ab(*arguments).stdout == ab(*arguments).stdout


def test_one_configuration_twice_differs_by_exactly_nothing(files: tuple[str, ...]) -> None:
    answer = answered(files[0], files[0], *files[2:], "--noise", "0.2")
    assert set(answer["arms"]) == {files[0]}
    for each in answer["comparisons"][0]["differences"]:
        assert (each["difference"], each["low"], each["high"]) == (0, 0, 0)


def test_tables_show_the_verdicts_and_the_pairs(files: tuple[str, ...]) -> None:
    result = ab(*files)
    assert result.exit_code == 0
    for words in ("narrow against wide", "worse", "other figures differ", "first token", "seeds"):
        assert words in result.stdout
    assert result.stderr == ""


def test_several_loads_are_one_table_and_load_one_is_capacity(files: tuple[str, ...]) -> None:
    loads = ("--load", "0.5", "--load", "1", "--primary", "e2e_s.mean")
    table = ab(*files, *loads, "--markdown").stdout.splitlines()
    assert table[0] == "| load | arm | e2e_s.mean |"
    assert [line.split("|")[1:3] for line in table[2:]] == [
        [" 0.5 ", " wide "],
        [" 0.5 ", " narrow "],
        [" 1 ", " wide "],
        [" 1 ", " narrow "],
    ]
    assert "−" in table[3] or "+" in table[3]
    pairs = answered(*files, *loads)["comparisons"]
    assert [pair["load"] for pair in pairs] == [0.5, 1]
    assert pairs[0]["differences"][0]["first"] < pairs[1]["differences"][0]["first"]


def test_a_gate_ends_with_its_own_code_and_says_why(files: tuple[str, ...]) -> None:
    result = ab(*files, "--fail-if-worse", "ttft_s.p50", "--fail-if-worse", "shed")
    assert result.exit_code == 3
    assert "narrow is worse than wide in ttft_s.p50" in result.stderr
    assert "shed" not in result.stderr
    swapped = (files[1], files[0], *files[2:])
    assert ab(*swapped, "--fail-if-worse", "ttft_s.p50").exit_code == 0


class Page(HTMLParser):
    """The words of a report, and what it asks others for."""

    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []
        self.asked: list[str] = []

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.asked += [value or "" for name, value in attrs if name in ("src", "srcset")]


@pytest.mark.parametrize("loads", [(), ("--load", "0.5", "--load", "1")])
def test_a_report_is_one_file_with_the_tables_and_the_command(
    files: tuple[str, ...], loads: tuple[str, ...], tmp_path: Path
) -> None:
    path = tmp_path / "reports" / "ab.html"
    assert ab(*files, *loads, "--html", str(path)).exit_code == 0
    page = Page()
    page.feed(path.read_text())
    words = " ".join(page.words)
    for expected in ("narrow against wide", "time to first token, mean", "How it was compared"):
        assert expected in words
    assert page.asked == []


def test_a_workload_and_settings_for_all_are_taken(files: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "workload.yaml"
    path.write_text("requests: 20\nheaviest: 1\nasked_tokens: 50\n")
    answer = answered(
        *files,
        *("--workload", str(path), "--set", "engine.allocation=reserve"),
        *("--primary", "ttft_s.mean@share:heaviest"),
    )
    assert answer["workload"]["requests"] == 20
    first = answer["comparisons"][0]["differences"][0]
    assert (first["of"], first["name"]) == ("share", "heaviest")
    assert answer["comparisons"][0]["requests"]["e2e_s"]["pairs"] == 100


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--primary", "ttft"), "ttft: expected one of ttft_s.mean"),
        (("--seeds", "4"), "--seeds"),
        (("--load", "1", "--speed", "2"), "--load: requests have either a load or a speed"),
        (("--load", "nan"), "--load"),
        (("--workload", "nowhere.yaml"), "nowhere.yaml: cannot be read"),
        (("--set", "engine.rows=1"), "engine.rows"),
        (("--profile", "a11g"), "no profile and no file a11g"),
        (
            ("--live", "http://127.0.0.1:9", "http://127.0.0.1:9"),
            "there is no server at http://127.0.0.1:9",
        ),
        (("--html", "/dev/null/report.html"), "/dev/null/report.html cannot be written"),
        (("--live", "a", "b"), "a"),
    ],
)
def test_what_cannot_be_compared_is_said(
    files: tuple[str, ...], arguments: tuple[str, ...], message: str
) -> None:
    result = ab(*files, *arguments)
    assert result.exit_code == 2
    assert message in result.stderr


def test_who_names_a_configuration_twice_is_told(files: tuple[str, ...]) -> None:
    assert "is named twice" in ab(files[0], files[0], *files[2:], "--seeds", "5").stderr
    assert "is named twice" not in ab(*files, "--seeds", "5").stderr


def test_one_configuration_alone_is_no_comparison(files: tuple[str, ...]) -> None:
    result = ab(files[0], *files[2:])
    assert result.exit_code == 2
    assert "two configurations" in result.stderr


@pytest.mark.parametrize("folder", sorted(EXAMPLES.iterdir()), ids=lambda folder: folder.name)
def test_every_example_runs(files: tuple[str, ...], folder: Path) -> None:
    configs = sorted(str(path) for path in folder.glob("*.yaml") if path.stem != "workload")
    workload = ("--workload", str(folder / "workload.yaml"))
    answer = answered(*configs, *files[2:], *workload, "--pool-tokens", "200000")
    assert len(answer["comparisons"]) == len(configs) - 1
    assert set(answer["arms"]) == {Path(config).stem for config in configs}


@pytest.mark.parametrize(
    ("relative", "text"), [(0.0123, "+1.2%"), (-0.25, "−25.0%"), (-0.0001, "0.0%"), (0.0, "0.0%")]
)
def test_a_relative_difference_has_a_sign_unless_it_rounds_to_nothing(
    relative: float, text: str
) -> None:
    assert percent(relative) == text
