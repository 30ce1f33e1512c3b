"""Calibration: drive an engine through the design for a while, fit, and make a profile of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from rich.console import Console

from app.compose import Core
from app.config import Config
from app.config.schema import SchedulerConfig
from loadtest.calibration.design import RANDOM_CHUNKS, Demand, rounds
from loadtest.calibration.fitting import fit
from loadtest.calibration.house import Prompts, compose_measured, pool_tokens
from loadtest.calibration.watching import Observation, WatchedEngine
from loadtest.machine import cpu, versions
from loadtest.profiles import Profile

WARM_UP: Final = [Demand(64, 8)] * 4
"""Computed first, and not counted."""

Passed = Callable[[float], None]
"""Told how many of the seconds have passed."""


class Calibrator:
    """An engine of its own whose steps are measured, all at once or bit by bit.

    with Calibrator(config, console) as calibrator:
        calibrator.observe(60.0, passed)
        profile = calibrator.profile("here")
    """

    def __init__(self, config: Config, console: Console) -> None:
        """Load the model. Raises ConfigurationError."""
        policy = SchedulerConfig(policy=RANDOM_CHUNKS)
        self._core = compose_measured(config.model_copy(update={"scheduler": policy}), console)
        self._engine = WatchedEngine(self._core.engine)
        self._prompts = Prompts(self._core.model.vocab_size)
        rows = config.engine.max_rows
        longest = min(self._core.max_model_len, pool_tokens(self._core) // rows)
        self._rounds = rounds(rows, longest)
        self._steps: list[Observation] = []

    def __enter__(self) -> Calibrator:
        return self

    def __exit__(self, *exception: object) -> None:
        self._core.model.backend.close()

    def observe(self, seconds: float, passed: Passed) -> None:
        """Measure for so many seconds more."""
        self._steps += observe(self._engine, self._prompts, self._rounds, seconds, passed)

    def profile(self, name: str = "calibrated") -> Profile:
        """What all steps so far say of the engine."""
        return profile_of(self._core, self._steps, name)


def observe(
    engine: WatchedEngine,
    prompts: Prompts,
    coming: Iterable[list[Demand]],
    seconds: float,
    passed: Passed,
) -> list[Observation]:
    """The steps of as many of the coming rounds as begin in so many seconds."""
    steps: list[Observation] = []
    _run(engine, prompts, WARM_UP)
    began = engine.timer()
    for demands in coming:
        steps += _run(engine, prompts, demands)
        elapsed = engine.timer() - began
        passed(min(elapsed, seconds))
        if elapsed >= seconds:
            break
    return steps


def _run(engine: WatchedEngine, prompts: Prompts, demands: list[Demand]) -> list[Observation]:
    """The steps of requests that come at once."""
    mail = [prompts.submission(each.prompt, each.output, engine.now()) for each in demands]
    steps = [engine.step(mail)]
    while engine.busy:
        steps.append(engine.step())
    return [step for step in steps if step is not None]


def profile_of(core: Core, steps: list[Observation], name: str) -> Profile:
    """What the steps of an engine say of it."""
    cost, residuals, observed = fit(steps)
    backend, model = core.model.backend, core.path
    kind = "cpu" if core.model.threads else "simulated"
    what = f"{model.name} on {kind}" if model else f"the {kind} backend"
    return Profile(
        name=name,
        about=f"{what}, fitted to measurements.",
        cost=cost,
        estimate=False,
        source=f"octavo calibrate, {len(steps)} steps",
        residuals=residuals,
        pool_tokens=pool_tokens(core),
        context_tokens=core.max_model_len,
        host_blocks=backend.host_blocks,
        move_s=float(f"{backend.move_seconds:.4g}"),
        observed=observed,
        measured_on=_measured_on(core),
    )


def _measured_on(core: Core) -> dict[str, str]:
    threads = {"threads": str(core.model.threads)} if core.model.threads else {}
    native = {"native": core.model.native} if core.model.native else {}
    processor = cpu()
    here = {"processor": processor["model"], "cores": str(processor["cores"])}
    return {**versions(), **here, **threads, **native}
