"""A profile by name: fitted and kept here, computed from public figures, or read from a file."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from engine.batch import BLOCK
from engine.capacity import Device
from engine.cost import LinearCost
from engine.errors import ConfigurationError
from engine.presets import GPUS, MODELS
from loadtest.profiles.roofline import roofline_cost, roofline_pool_tokens

KEPT: Final = Path(__file__).parent
"""Where fitted profiles are kept, NAME.json each."""

COEFFICIENTS: Final = ("base", "prompt_token", "decode", "kv_read", "chunk_context")


@dataclass(frozen=True, slots=True)
class Profile:
    """A step-cost model with where it is from.

    about: which model on which machine, in a line. estimate: computed, not measured. residuals:
    quantiles of actual over predicted seconds, minus one, by level; empty if nobody measured.
    pool_tokens: what the KV cache holds there; None where nobody said. host_blocks: that can be
    offloaded, each in move_s seconds.
    """

    name: str
    about: str
    cost: LinearCost
    estimate: bool
    source: str
    licence: str = ""
    residuals: Mapping[str, float] = field(default_factory=dict)
    pool_tokens: int | None = None
    host_blocks: int = 0
    move_s: float = 0.0

    def to_json(self) -> str:
        """The profile as a file; `find_profile` reads it."""
        document = {each.name: getattr(self, each.name) for each in fields(self)}
        cost = asdict(self.cost)
        document["cost"] = {f"{name}_s": cost[name] for name in COEFFICIENTS}
        document["residuals"] = dict(self.residuals)
        return json.dumps(document, indent=2) + "\n"


def find_profile(name: str) -> Profile:
    """The profile of this name: a kept one, GPU-MODEL (an estimate), or a file's path.

    Raises ConfigurationError.
    """
    kept = KEPT / f"{name}.json"
    if kept.parent == KEPT and kept.is_file():
        return _read(kept)
    for gpu in sorted(GPUS, key=len, reverse=True):
        model = name.removeprefix(f"{gpu}-")
        if model != name and model in MODELS:
            return _estimate(name, GPUS[gpu], model)
    path = Path(name)
    if path.is_file():
        return _read(path)
    names = ", ".join(sorted(kept.stem for kept in KEPT.glob("*.json")))
    raise ConfigurationError(
        f"--profile: there is no profile and no file {name}; there are {names}, and GPU-MODEL with"
        f" GPU one of {', '.join(GPUS)} and MODEL one of {', '.join(MODELS)}"
    )


def _estimate(name: str, gpu: Device, model: str) -> Profile:
    """The profile of a model on a GPU that nobody has measured."""
    return Profile(
        name,
        f"{model} on {gpu.name}, an estimate from public figures.",
        roofline_cost(gpu, MODELS[model], model),
        estimate=True,
        source=f"roofline of public figures, {gpu.source}",
        pool_tokens=roofline_pool_tokens(gpu, MODELS[model], model),
    )


def _read(path: Path) -> Profile:
    """A profile from a file. Raises ConfigurationError that names it."""
    try:
        return _profile(json.loads(path.read_bytes()))
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror}") from None
    except KeyError as error:
        raise ConfigurationError(f"{path}: is no step-cost profile: no {error}") from None
    except (ValueError, TypeError, AttributeError) as error:
        raise ConfigurationError(f"{path}: is no step-cost profile: {error}") from None


def _profile(document: Any) -> Profile:
    seconds: dict[str, Any] = {name: float(document["cost"][f"{name}_s"]) for name in COEFFICIENTS}
    if not all(math.isfinite(each) and each >= 0 for each in seconds.values()):
        raise ValueError("coefficients are seconds, none of them negative")
    if not any(seconds.values()):
        raise ValueError("its steps take no time")
    return Profile(
        name=str(document["name"]),
        about=str(document["about"]),
        cost=LinearCost(**seconds),
        estimate=bool(document["estimate"]),
        source=str(document["source"]),
        licence=str(document.get("licence", "")),
        residuals={str(q): float(v) for q, v in document.get("residuals", {}).items()},
        pool_tokens=_pool_tokens(document.get("pool_tokens")),
        host_blocks=int(document.get("host_blocks", 0)),
        move_s=float(document.get("move_s", 0.0)),
    )


def _pool_tokens(value: Any) -> int | None:
    if value is None:
        return None
    if type(value) is not int or value < BLOCK:
        raise ValueError(f"pool_tokens are at least {BLOCK}")
    return value
