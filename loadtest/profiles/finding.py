"""A profile by name: fitted and kept here, computed from public figures, or read from a file."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from engine.capacity import Device
from engine.errors import ConfigurationError
from engine.presets import GPUS, MODELS
from loadtest.profiles.document import read_profile
from loadtest.profiles.profile import Profile
from loadtest.profiles.roofline import roofline_cost, roofline_pool_tokens

KEPT: Final = Path(__file__).parent
"""Where fitted profiles are kept, NAME.json each."""


def find_profile(name: str) -> Profile:
    """The profile of this name: a kept one, GPU-MODEL (an estimate), or a file's path.

    Raises ConfigurationError.
    """
    kept = KEPT / f"{name}.json"
    if kept.parent == KEPT and kept.is_file():
        return read_profile(kept)
    for gpu in sorted(GPUS, key=len, reverse=True):
        model = name.removeprefix(f"{gpu}-")
        if model != name and model in MODELS:
            return _estimate(name, GPUS[gpu], model)
    path = Path(name)
    if path.is_file():
        return read_profile(path)
    names = ", ".join(sorted(kept.stem for kept in KEPT.glob("*.json")))
    raise ConfigurationError(
        f"--profile: there is no profile and no file {name}; there are {names}, and GPU-MODEL with"
        f" GPU one of {', '.join(GPUS)} and MODEL one of {', '.join(MODELS)}"
    )


def _estimate(name: str, gpu: Device, model: str) -> Profile:
    """The profile of a model on a GPU that nobody has measured.

    Raises ConfigurationError for a model that does not fit.
    """
    pool_tokens = roofline_pool_tokens(gpu, MODELS[model], model)
    if pool_tokens is None:
        message = f"--profile: {model} in bfloat16 does not fit into the memory of one {gpu.name}"
        raise ConfigurationError(message)
    return Profile(
        name,
        f"{model} on {gpu.name}, an estimate from public figures.",
        roofline_cost(gpu, MODELS[model], model),
        estimate=True,
        source=f"roofline of public figures, {gpu.source}",
        pool_tokens=pool_tokens,
        context_tokens=MODELS[model].context_length,
    )
