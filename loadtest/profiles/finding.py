"""A profile by name: fitted and kept here, computed from public figures, or read from a file."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from engine.capacity import Device
from engine.errors import ConfigurationError
from engine.presets import GPUS, MODELS
from loadtest.profiles.document import read_profile
from loadtest.profiles.profile import Profile
from loadtest.profiles.roofline import roofline_cost, roofline_pool_tokens, together

KEPT: Final = Path(__file__).parent
"""Where fitted profiles are kept, NAME.json each."""


SEVERAL: Final = ("2", "4", "8")
"""How many GPUs may compute one model together."""


def find_profile(name: str) -> Profile:
    """The profile of this name: a kept one, GPU-MODEL (an estimate), or a file's path.

    Raises ConfigurationError.
    """
    kept = KEPT / f"{name}.json"
    if kept.parent == KEPT and kept.is_file():
        return read_profile(kept)
    for model in MODELS:
        device = gpus(name.removesuffix(f"-{model}")) if name.endswith(f"-{model}") else None
        if device is not None:
            return _estimate(name, device, model)
    path = Path(name)
    if path.is_file():
        return read_profile(path)
    names = ", ".join(sorted(kept.stem for kept in KEPT.glob("*.json")))
    raise ConfigurationError(
        f"--profile: there is no profile and no file {name}; there are {names}, and GPU-MODEL with"
        f" GPU one of {', '.join(GPUS)} (several: h100x2) and MODEL one of {', '.join(MODELS)}"
    )


def gpus(name: str) -> Device | None:
    """A GPU by name, or with xN behind it N of them as one; None for what is neither."""
    if name in GPUS:
        return GPUS[name]
    one, _, several = name.rpartition("x")
    if one in GPUS and several in SEVERAL:
        return together(GPUS[one], int(several))
    return None


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
