"""What is measured of a configuration, from loading the model to the last run of a check."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from rich.console import Console

from app.config import Config
from loadtest.calibration.checking import LOADS, Prediction, check
from loadtest.calibration.house import compose_measured
from loadtest.calibration.live import LiveEngine
from loadtest.calibration.measuring import Calibrator, Passed
from loadtest.houses import House, house_of
from loadtest.profiles import Profile

RUNS_A_REPEAT: Final = 1 + len(LOADS)
"""Real runs: all requests at once, and each load."""

SECONDS: Final = 60.0
RUN_SECONDS: Final = 20.0
REPEATS: Final = 3


def nobody(passed: float) -> None:
    """A `Passed` that nobody looks at."""


@dataclass(frozen=True, slots=True)
class Job:
    """What is to be measured, for so many seconds. known: the profile, if nothing is.

    Raises ConfigurationError when it loads the model.
    """

    config: Config
    console: Console
    seconds: float = SECONDS
    name: str = "calibrated"
    known: Profile | None = None

    def measure(self, passed: Passed = nobody) -> Profile:
        """The profile."""
        if self.known is not None:
            return self.known
        with Calibrator(self.config, self.console) as calibrator:
            calibrator.observe(self.seconds, passed)
            return calibrator.profile(self.name)

    def check(
        self, seconds: float, repeats: int, ran: Callable[[], None]
    ) -> tuple[Profile, list[Prediction]]:
        """The profile, and what became of its predictions; measured in turns with the runs.

        seconds: of a real run, roughly; there are RUNS_A_REPEAT in each repeat. ran: called after
        each. Raises Unmeasured if requests do not end.
        """
        found: list[Profile] = []
        with ExitStack() as stack:
            calibrator = None
            if self.known is None:
                calibrator = stack.enter_context(Calibrator(self.config, self.console))
            core = compose_measured(self.config, self.console)
            stack.callback(core.model.backend.close)
            live = stack.enter_context(LiveEngine(core))

            def house() -> House:
                found.append(self._more(calibrator, self.seconds / repeats))
                return house_of(self.config, found[-1], noise=found[-1].residuals)

            answers = check(house(), live, seconds=seconds, repeats=repeats, between=house, ran=ran)
        return found[-1], answers

    def _more(self, calibrator: Calibrator | None, seconds: float) -> Profile:
        """The profile after some seconds more."""
        if calibrator is None:
            assert self.known is not None
            return self.known
        calibrator.observe(seconds, nobody)
        return calibrator.profile(self.name)
