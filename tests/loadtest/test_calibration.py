"""Calibration finds what steps cost; a check says whether a simulation came true."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from app.cli import main
from app.config.load import load_config
from engine.backends.simulated import SimulatedBackend
from engine.batch import StepShape
from engine.blocks import BlockPool
from engine.clock import VirtualClock
from engine.cost import LinearCost
from engine.limits import Limits
from engine.loop import Engine
from engine.scheduler import Scheduler
from engine.simulation.residuals import DECODE, PROMPT
from loadtest.calibration.checking import Prediction, check, workload
from loadtest.calibration.design import RandomChunks, rounds
from loadtest.calibration.fitting import fit
from loadtest.calibration.house import Prompts, compose_measured, drop
from loadtest.calibration.live import LiveEngine
from loadtest.calibration.measuring import observe
from loadtest.calibration.watching import Observation, WatchedEngine
from loadtest.houses import house_of
from loadtest.profiles import find_profile
from policies.base import Services

TRUE = LinearCost(0.004, 3e-4, 5e-4, 2e-6, 4e-7)
SIMULATED = ["engine.backend=simulated", "engine.simulated.base_s=0.0005", "engine.max_rows=4"]


def watched(cost: LinearCost, clock: VirtualClock, rows: int = 16) -> WatchedEngine:
    """An engine in virtual time, which starts with a wrong idea of what steps cost."""
    scheduler = Scheduler(
        RandomChunks(services=Services(cost, random.Random(0))),
        BlockPool(2048),
        Limits(step_tokens=128, rows=rows, model_len=2048),
        cpu_clock=lambda: 0.0,
    )
    engine = Engine(
        scheduler=scheduler,
        backend=SimulatedBackend.virtual(cost, 2048, clock),
        clock=clock,
        cost=LinearCost(1.0),
        emit=drop,
    )
    return WatchedEngine(engine, timer=clock.now)


def test_the_design_tells_all_coefficients_apart() -> None:
    engine = watched(TRUE, VirtualClock())
    told: list[float] = []
    steps = observe(engine, Prompts(1000), rounds(16, 2048), 30.0, told.append)
    cost, residuals, observed = fit(steps)
    for name in ("base", "prompt_token", "decode", "kv_read", "chunk_context"):
        assert getattr(cost, name) == pytest.approx(getattr(TRUE, name), rel=0.01)
    assert observed.decodes == 16
    assert observed.prompt_tokens > 100
    assert residuals.quantiles[DECODE][1.0] == pytest.approx(0, abs=0.01)
    assert told == sorted(told)
    assert told[-1] == 30.0


def test_rounds_go_through_all_numbers_of_rows_before_any_comes_again() -> None:
    numbers = [len(each) for each in itertools.islice(rounds(8, 512), 12)]
    assert sorted(numbers[:7]) == [1, 2, 3, 4, 5, 6, 8]
    assert len(set(numbers[7:])) == 5
    for demands in itertools.islice(rounds(64, 100), 40):
        assert all(each.prompt + each.output <= 100 for each in demands)


def scattered() -> list[Observation]:
    """Steps that scatter by a tenth, with one in fifty three times as long."""
    chance, now = random.Random(1), 0.0
    steps: list[Observation] = []
    for n in range(3_000):
        decodes = chance.randint(0, 16)
        prefill = chance.choice([0, 0, 32, 128])
        shape = StepShape(prefill, decodes, 100 * decodes + prefill, prefill * prefill)
        factor = chance.lognormvariate(0, 0.1) * (3.0 if n % 50 == 0 else 1.0)
        now += TRUE.of(shape) * factor
        steps.append(Observation(shape, now, TRUE.of(shape) * factor, TRUE.of(shape) * factor))
    return steps


def test_predictions_are_right_on_the_whole_and_steps_that_were_held_up_are_residuals() -> None:
    steps = scattered()
    cost, residuals, _ = fit(steps)
    predicted = sum(cost.of(step.shape) for step in steps)
    assert predicted == pytest.approx(sum(step.seconds for step in steps), rel=1e-3)
    assert cost.prompt_token / cost.base == pytest.approx(TRUE.prompt_token / TRUE.base, rel=0.1)
    for kind in (DECODE, PROMPT):
        assert residuals.quantiles[kind][0.5] == pytest.approx(-0.04, abs=0.03)
        assert residuals.quantiles[kind][0.995] > 1.5
    assert residuals.persistence.share < 0.1


def prediction(load: float | None, predicted: float, *measured: float) -> Prediction:
    return Prediction("ttft_mean_s", load, predicted, measured)


@pytest.mark.parametrize(
    ("load", "predicted", "measured", "holds"),
    [
        (None, 1.09, (1.0, 1.0, 1.0), True),
        (None, 1.11, (0.9, 1.0, 1.1), False),  # of the capacity the spread is no excuse
        (0.5, 0.91, (1.0, 1.0, 1.0), True),
        (0.5, 0.89, (1.0, 1.0, 1.0), False),
        (0.7, 1.18, (0.95, 1.0, 1.05), True),
        (0.9, 1.24, (1.0, 1.0, 1.0), True),
        (0.9, 1.26, (0.5, 1.0, 1.5), False),
    ],
)
def test_what_a_prediction_is_allowed(
    load: float | None, predicted: float, measured: tuple[float, ...], holds: bool
) -> None:
    assert prediction(load, predicted, *measured).holds is holds


def test_the_workload_of_a_check_is_the_same_each_time_and_fits() -> None:
    assert workload(50, 400) == workload(50, 400)
    assert all(a.prompt_tokens + a.output_tokens <= 400 for a in workload(500, 400))


def test_a_check_runs_every_load_in_every_repeat() -> None:
    """A simulated backend that takes no time: what is measured is of no interest here."""
    settings = [*SIMULATED, "engine.simulated.real_time=false"]
    config = load_config(Path("/dev/null"), overrides=settings)
    core = compose_measured(config, Console(quiet=True))
    house = house_of(config)
    ran: list[None] = []
    with LiveEngine(core) as live:
        answers = check(
            house,
            live,
            seconds=0.2,
            repeats=2,
            between=lambda: house,
            ran=lambda: ran.append(None),
        )
    assert len(ran) == 2 * 4
    assert [each.load for each in answers] == [None, 0.5, 0.5, 0.7, 0.7, 0.9, 0.9]
    assert all(len(each.measured) == 2 and min(each.measured) > 0 for each in answers)


def calibrate(*arguments: str) -> tuple[int, str]:
    sets = [part for each in SIMULATED for part in ("--set", each)]
    result = CliRunner().invoke(main, ["calibrate", *sets, *arguments], catch_exceptions=False)
    return result.exit_code, result.stdout


def test_the_command_writes_a_profile_that_a_simulation_takes(tmp_path: Path) -> None:
    out = tmp_path / "here.json"
    code, text = calibrate("--seconds", "1", "--out", str(out), "--json")
    assert code == 0
    assert json.loads(text)["profile"] == json.loads(out.read_text())
    profile = find_profile(str(out))
    assert profile.pool_tokens == 4096 * 16
    assert profile.residuals
    assert not profile.estimate
    assert profile.observed is not None
    assert 1 <= profile.observed.decodes <= 4
    code, text = calibrate("--profile", str(out))
    assert code == 0
    for words in ("a prompt token", "decode steps", "pool"):
        assert words in text


def test_a_profile_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    """Before anything is measured: there is nothing to measure with, and nobody gets to that."""
    arguments = ["calibrate", "--profile", "no such profile", "--out", str(tmp_path / "no" / "p")]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert "--out" in result.stderr
    assert "cannot be written" in result.stderr
    assert not (tmp_path / "no").exists()
