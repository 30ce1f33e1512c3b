"""Who guesses what follows, as `engine.speculation` wants it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from app.config import Config
from app.config.schema import SpeculationConfig
from app.problems import BadConfiguration, Problem, naming_the_key
from app.text.calibration import calibration_tokens
from app.text.files import load_tokenizer
from app.text.tokenizer import Tokenizer
from app.text.vocabulary import difference
from engine.backends import LoadedModel, load_on_cpu
from engine.clock import MonotonicClock
from engine.cost import FittedCost, LearningCost
from engine.drafting.model import DraftModel, DraftSettings
from engine.speculation import Drafter, PromptLookup, SpeculationSettings


@dataclass(frozen=True, slots=True)
class Guessing:
    """drafter: who guesses, if anybody does. model: what it guesses with, if that is a model."""

    drafter: Drafter | None = None
    model: LoadedModel | None = None

    def close(self) -> None:
        """Give the model's memory back."""
        if self.model is not None:
            self.model.backend.close()


def compose_guessing(
    config: Config, cost: LearningCost, tokenizer: Tokenizer, served: LoadedModel
) -> Guessing:
    """Make who guesses for the served model, which has this tokenizer, and whose steps take `cost`.

    Raises ConfigurationError if a draft model cannot be had, or has another vocabulary.
    """
    wanted = config.engine.speculation
    if wanted.method == "none":
        return Guessing()
    if wanted.method == "ngram":
        return Guessing(PromptLookup(SpeculationSettings(cost, wanted.tokens, wanted.ngram)))
    model = _load(config, wanted, tokenizer)
    settings = DraftSettings(
        cost,
        FittedCost(),
        MonotonicClock(),
        tokens=wanted.tokens,
        piece=config.engine.step_tokens,
        context=model.context_length,
        vocab=min(model.vocab_size, served.vocab_size),
    )
    drafter = DraftModel(model.backend, settings)
    drafter.measure()
    return Guessing(drafter, model)


def _load(config: Config, wanted: SpeculationConfig, tokenizer: Tokenizer) -> LoadedModel:
    """The draft model, if it speaks of the same tokens."""
    key = "engine.speculation.model"
    assert wanted.model is not None, "the configuration has been checked"
    path = Path(wanted.model)
    with naming_the_key(key, memory="engine.speculation"):
        own = load_tokenizer(path)
        if parts := difference(tokenizer, own):
            message = f"{path} has another vocabulary, so it cannot guess for this model: {parts}"
            raise BadConfiguration(Problem(key, message))
        return load_on_cpu(
            path,
            dtype=wanted.dtype,
            calibration=calibration_tokens(own) if wanted.dtype == "int8" else (),
            folder=Path(config.model.directory),
            kv_memory_bytes=wanted.kv_memory,
            threads=config.engine.threads,
        )
