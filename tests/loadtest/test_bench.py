"""`octavo bench` measures what it names, and says so in a form that scripts can rely on."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result
from support.built_in import BUILT_IN

from app.cli import main
from engine.inbox import Submission
from engine.outputs import Look, Output
from loadtest import host_bench, queue_bench
from loadtest.crowd import Crowd, Shape, submission_of
from loadtest.host_bench import ROWS, InstantBackend, Repeats, interleaved
from policies.fcfs import FCFS

QUICK = ("--rounds", "1", "--steps", "2", "--waiting", "1", "--waiting", "30")
OWN_WORK = ("--only", "host", "--only", "queues", "--only", "allocation")


def bench(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["bench", *arguments], catch_exceptions=False)


def test_json_has_the_keys_that_scripts_read() -> None:
    result = bench("--json", *OWN_WORK, *QUICK)
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    assert set(report) == {
        "scheduler_step_ms",
        "host_step_ms",
        "rows_per_s",
        "churn_rows_per_s",
        "waiting_ms",
        "block_layer",
        "scrape_ms",
        "scrape_names_ms",
        "queues",
        "allocation",
        "rounds",
        "steps",
        "lacks",
        "versions",
        "cpu",
    }
    assert set(report["waiting_ms"]) == {"1", "30"}
    figures = [report["scheduler_step_ms"], report["host_step_ms"], report["rows_per_s"]]
    figures += [report["scrape_ms"], report["scrape_names_ms"]]
    assert all(figure > 0 for figure in [*figures, *report["waiting_ms"].values()])
    assert set(report["versions"]) >= {"octavo", "python", "numpy"}
    assert report["cpu"]["cores"] >= 1
    assert set(report["queues"]) == set(BUILT_IN)
    for by_shape in report["queues"].values():
        assert set(by_shape) == {"one flow", "a flow each", "one cold prefix"}
        for figures in by_shape.values():
            assert set(figures["added_ms"]) == set(figures["worst_ms"]) == {"1", "30"}
            difference = figures["added_ms"]["30"] - figures["added_ms"]["1"]
            assert figures["growth_ms"] == pytest.approx(difference)
    assert set(report["allocation"]) == {"paged", "reserve"}
    assert set(report["allocation"]["paged"]) >= {"running", "output_tok_s", "waste_fraction"}


def test_the_table_names_every_measurement_and_no_bar_is_drawn_off_a_terminal() -> None:
    result = bench(*OWN_WORK, *QUICK)
    assert result.exit_code == 0
    for words in (
        "schedule + land",
        "hand-over",
        "a scrape of /metrics, 256 running",
        "rows a second",
        "schedule with 30 waiting",
        "one cold prefix",
        "reserve",
    ):
        assert words in result.stdout
    assert result.stderr == ""


def test_help_shows_an_example() -> None:
    assert "octavo bench --json" in bench("--help").output


@pytest.mark.parametrize("arguments", [("--rounds", "0"), ("--steps", "0"), ("--waiting", "-1")])
def test_counts_that_measure_nothing_are_refused(arguments: tuple[str, str]) -> None:
    assert bench(*arguments).exit_code == 2


def test_probes_take_turns_and_the_figure_is_the_median() -> None:
    calls: list[str] = []
    values = {"a": iter([3.0, 1.0, 2.0]), "b": iter([10.0, 30.0, 50.0])}

    def probe(name: str) -> float:
        calls.append(name)
        return next(values[name])

    probes = {"a": lambda: probe("a"), "b": lambda: probe("b")}
    ticks: list[None] = []
    assert interleaved(probes, 3, lambda: ticks.append(None)) == {"a": 2.0, "b": 30.0}
    assert calls == ["a", "b"] * 3
    assert len(ticks) == 6


def test_every_measured_step_has_all_rows_decoding_to_the_last_one() -> None:
    repeats = Repeats(rounds=3, steps=4)
    engine = host_bench.decoding_engine(repeats)
    seen: list[tuple[int, int]] = []

    def emit(outputs: list[Output], look: Look) -> None:
        seen.append((look().step_tokens, len(outputs)))

    engine.emit = emit  # type: ignore[assignment]
    for _ in range(repeats.rounds * repeats.steps):
        engine.step(())
    assert seen == [(ROWS, ROWS)] * 12
    assert engine.scheduler.live == ROWS
    engine.scheduler.check()


def test_nobody_who_waits_is_admitted_while_planning_is_measured() -> None:
    repeats = Repeats(rounds=2, steps=3)
    engine = host_bench.decoding_engine(repeats)
    host_bench.submit(engine, 50, prompt=8, generated=1)
    for _ in range(repeats.rounds * repeats.steps):
        host_bench.bare_step(engine)
    stats = engine.scheduler.stats(0.0)
    assert (stats.running, stats.waiting) == (ROWS, 50)


def test_rows_a_second_counts_the_rows_of_requests_that_all_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a clock that says one second passed, the figure is the number of rows."""
    now = iter([10.0, 11.0])
    monkeypatch.setattr(host_bench.time, "thread_time", lambda: next(now))
    # five requests: one row for the prompt, whose last token samples, and two more
    assert host_bench.rows_per_second(5, prompt=8, generated=3) == 15


def test_the_instant_backend_samples_a_token_a_row() -> None:
    backend = InstantBackend(4)
    backend.sample(7, [None, None])  # type: ignore[list-item]
    sampled = backend.collect(7)
    assert list(sampled.tokens) == [0, 0]
    assert list(sampled.logprobs) == [None, None]


@pytest.mark.parametrize("shape", queue_bench.SHAPES, ids=lambda shape: shape.name)
def test_a_crowd_waits_behind_full_rows_and_one_is_let_in_each_turn(shape: Shape) -> None:
    crowd = Crowd(FCFS, shape, rows=4)
    crowd.fill(50)
    before = crowd.scheduler.counters.admitted
    for _ in range(10):
        assert crowd.turn() >= 0
    stats = crowd.scheduler.stats(0.0)
    assert (stats.running, stats.waiting) == (4, 50)
    assert crowd.scheduler.counters.admitted == before + 10
    crowd.scheduler.check()


def test_shapes_differ_in_tenants_and_in_what_prompts_begin_with() -> None:
    def crowd(shape: Shape) -> list[Submission]:
        return [submission_of(shape, number) for number in range(10, 14)]

    assert len({each.tenant for each in crowd(queue_bench.ONE_FLOW)}) == 1
    assert len({each.tenant for each in crowd(queue_bench.MANY_FLOWS)}) == 4
    assert len({each.prompt_keys[0] for each in crowd(queue_bench.ONE_FLOW)}) == 4
    assert len({each.prompt_keys[0] for each in crowd(queue_bench.COMMON_PREFIX)}) == 1
    assert len({each.prompt_keys[1] for each in crowd(queue_bench.COMMON_PREFIX)}) == 4
