"""Drives our own engine: composed from its default configuration, without HTTP."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console

from app.compose import compose_engine
from app.config import Config
from engine.controls import RowControls
from engine.inbox import Submission
from engine.outputs import Output, Stats

_GREEDY = RowControls(temperature=0.0, ignore_eos=True)

Generate = Callable[[Sequence[Sequence[int]], int], None]


def load(settings: Mapping[str, Any]) -> tuple[int, Generate]:
    """settings: `model`, the path of a GGUF file."""
    config = Config.model_validate({"model": {"path": settings["model"]}})
    core = compose_engine(config, Console(stderr=True), _drop)
    engine = core.engine
    ids = iter(range(1 << 62))

    def generate(prompts: Sequence[Sequence[int]], output: int) -> None:
        now = engine.clock.now()
        for prompt in prompts:
            submission = Submission(next(ids), prompt, output, _GREEDY, now)
            engine.scheduler.submit(submission, now)
        while engine.scheduler.live:
            engine.step(())

    return core.model.vocab_size, generate


def _drop(outputs: Sequence[Output], stats: Callable[[], Stats]) -> None:
    """Nobody reads what is computed here."""
