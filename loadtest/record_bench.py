"""What recording costs a step: the same engine with a recorder and without, step by step in turn.

Two engines of the same model decode the same number of rows; each step of one is followed by a step
of the other, and who comes first changes, so that a busy moment of the machine meets both. What is
written is written by a thread, as in a server, which may run while either of them steps; so its CPU
time is added to the recorded steps, as if they had waited for all of it.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from app.compose import Core, compose_engine
from app.config import Config
from app.recording.recording import Recording
from app.recording.writer import PAUSE_S
from engine.controls import RowControls
from engine.inbox import Abort, Submission
from engine.outputs import Look, Output
from engine.recorder import Recorder
from loadtest.host_bench import ROWS, Repeats, decoding_engine, whole_steps

AT: Final = (1, 8, 64)
"""Sequences that decode together, in turn."""

PROMPT: Final = 128
GREEDY: Final = RowControls(temperature=0.0, ignore_eos=True)

Tick = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Steps:
    """Seconds of a step: medians without a recorder and with one, and of the writer's CPU."""

    off: float
    on: float
    writer: float

    @property
    def share(self) -> float:
        """What recording adds, the writer's time included, as a part of a step without it."""
        return (self.on - self.off + self.writer) / self.off


def measure_recording(
    config: Config, console: Console, repeats: Repeats, tick: Tick = lambda: None
) -> dict[str, Any]:
    """The figures as JSON; `tick` is called after each of `ticks()` parts.

    host: a step of the loop around a backend that takes no time, in CPU time. model: of the
    configured model. Raises ConfigurationError if the model cannot be had.
    """
    host = _host(repeats)
    tick()
    found = {str(ROWS): host}
    with tempfile.TemporaryDirectory() as directory:
        sides = Sides(config, console, Path(directory))
        try:
            model = {}
            for rows in AT:
                model[str(rows)] = sides.measure(rows, repeats.steps)
                tick()
        finally:
            sides.close()
    return {
        "host": {rows: _report(steps) for rows, steps in found.items()},
        "model": {rows: _report(steps) for rows, steps in model.items()},
    }


def ticks() -> int:
    """How often `measure_recording` ticks."""
    return 1 + len(AT)


def _host(repeats: Repeats) -> Steps:
    """Without a writer: that is measured beside the model."""
    plain = decoding_engine(repeats)
    taken: list[object] = []
    recorded = decoding_engine(repeats, recorder=Recorder(taken.append))
    off, on = [], []
    for _ in range(repeats.rounds):
        off.append(statistics.median(whole_steps(plain, repeats.steps)))
        on.append(statistics.median(whole_steps(recorded, repeats.steps)))
        taken.clear()
    return Steps(statistics.median(off), statistics.median(on), 0.0)


class Sides:
    """The model twice, recorded and not."""

    def __init__(self, config: Config, console: Console, directory: Path) -> None:
        rows = max(config.engine.max_rows, *AT)
        engine = config.engine.model_copy(update={"max_rows": rows})
        record = config.record.model_copy(update={"directory": str(directory)})
        config = config.model_copy(update={"engine": engine, "record": record})
        self._recording = Recording(config)
        self._cores = {
            "off": compose_engine(config, console, _look),
            "on": compose_engine(config, console, _look, self._recording),
        }
        self._rng = random.Random(0)
        self._ids = 0

    def close(self) -> None:
        """Give the memory of both back."""
        self._recording.close()
        for core in self._cores.values():
            core.model.backend.close()

    def measure(self, rows: int, steps: int) -> Steps:
        """So many steps of each in which all rows decode."""
        prompts = self._prompts(rows)
        counters = self._cores["on"].engine.scheduler.counters
        before, steps_before = self._recording.cpu_s, counters.steps
        for core in self._cores.values():
            self._begin(core, prompts, steps)
        took: dict[str, list[float]] = {"off": [], "on": []}
        order = list(self._cores)
        for _ in range(steps):
            order.reverse()
            for side in order:
                began = time.perf_counter()
                self._cores[side].engine.step(())
                took[side].append(time.perf_counter() - began)
        for core in self._cores.values():
            core.engine.step([Abort(id) for id in list(core.engine.scheduler.roster.requests)])
        time.sleep(3 * PAUSE_S)  # until all of it is written, prompts and ends included
        writer = (self._recording.cpu_s - before) / (counters.steps - steps_before)
        return Steps(statistics.median(took["off"]), statistics.median(took["on"]), writer)

    def _prompts(self, rows: int) -> list[list[int]]:
        vocab = self._cores["off"].model.vocab_size
        return [[self._rng.randrange(vocab) for _ in range(PROMPT)] for _ in range(rows)]

    def _begin(self, core: Core, prompts: Sequence[Sequence[int]], steps: int) -> None:
        """Let the prompts arrive, as mail, and be computed."""
        now = core.engine.clock.now()
        output = steps + 4 * len(prompts) + 8  # while the others' prompts are computed, too
        mail = []
        for prompt in prompts:
            self._ids += 1
            mail.append(Submission(self._ids, prompt, output, GREEDY, now))
        core.engine.step(mail)
        while len(core.engine.scheduler.roster.decoding) < len(prompts):
            core.engine.step(())


def _look(outputs: Sequence[Output], look: Look) -> None:
    """Look at the whole, as a server's bridge does."""
    look()


def _report(steps: Steps) -> dict[str, float]:
    return {
        "off_us": 1e6 * steps.off,
        "on_us": 1e6 * steps.on,
        "writer_us": 1e6 * steps.writer,
        "share": steps.share,
    }


def table(found: dict[str, Any]) -> Table:
    """The figures for people."""
    shown = Table(
        title="What recording costs a step",
        caption="added: on - off + the writer's CPU time, as a part of a step that is not recorded",
    )
    for name in ("", "rows", "off", "on", "writer", "added"):
        shown.add_column(name, justify="right" if name else "left")
    for kind, label in (("host", "no model"), ("model", "the model")):
        for rows, each in found[kind].items():
            times = (f"{each[key]:,.0f} µs" for key in ("off_us", "on_us", "writer_us"))
            shown.add_row(label, rows, *times, f"{each['share']:.2%}")
    return shown
