"""The engine of a configuration, composed for somebody who measures it: no HTTP, no guesses."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console

from app.compose import Core, compose_engine
from app.config import Config
from engine.batch import BLOCK
from engine.controls import RowControls
from engine.inbox import Submission
from engine.loop import Emit
from engine.outputs import Look, Output

GREEDY = RowControls(temperature=0.0, ignore_eos=True)


def drop(outputs: Sequence[Output], look: Look) -> None:
    """An `Emit` that nobody listens to."""


def compose_measured(config: Config, console: Console, emit: Emit = drop) -> Core:
    """The engine of a configuration, without speculation. Raises ConfigurationError."""
    speculation = config.engine.speculation.model_copy(update={"method": "none"})
    engine = config.engine.model_copy(update={"speculation": speculation})
    return compose_engine(config.model_copy(update={"engine": engine}), console, emit)


def pool_tokens(core: Core) -> int:
    """Tokens that its KV cache holds."""
    return core.model.backend.total_blocks * BLOCK


@dataclass
class Prompts:
    """Submissions with prompts of random tokens, so that no two begin alike."""

    vocab: int
    seed: int = 0

    def __post_init__(self) -> None:
        self._chance = random.Random(f"prompts {self.seed}")
        self._next = 0

    def submission(self, prompt: int, output: int, arrival: float) -> Submission:
        """A request of so many tokens; greedy, and as long as it may be."""
        self._next += 1
        tokens = [self._chance.randrange(self.vocab) for _ in range(prompt)]
        return Submission(self._next, tokens, output, GREEDY, arrival)
