"""Profiles as JSON.

version           2; files without one are read as 1, whose residuals are by level only
name, about       what it is called, and which model on which machine it is
cost              seconds of an empty step (base_s), and of each prompt token, decode, KV token
                  read, and chunk token times its context: the terms of `engine.cost`
estimate          true: computed from public figures, false: measured
source, licence   where the figures are from
residuals         by kind of step (decode, prompt, all) and level: actual / predicted seconds - 1
persistence       share: of the scatter's variance that lasts; seconds: for how long
pool_tokens, context_tokens, host_blocks, move_s
                  what the KV cache holds, the longest request, host memory; null: nobody said
observed          steps measured, and the most of each quantity in one; null of an estimate
measured_on       versions and processor
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Final

from engine.batch import BLOCK
from engine.cost import LinearCost
from engine.errors import ConfigurationError
from engine.simulation.residuals import ALL, Persistence, Residuals
from loadtest.profiles.profile import Observed, Profile

VERSION: Final = 2
COEFFICIENTS: Final = ("base", "prompt_token", "decode", "kv_read", "chunk_context")


def to_json(profile: Profile) -> str:
    """The profile as a file; `read_profile` reads it."""
    document = {each.name: getattr(profile, each.name) for each in fields(profile)}
    cost, residuals = asdict(profile.cost), profile.residuals
    document["cost"] = {f"{name}_s": cost[name] for name in COEFFICIENTS}
    document["residuals"] = {
        kind: {f"{level:g}": value for level, value in levels.items()}
        for kind, levels in residuals.quantiles.items()
    }
    document["persistence"] = asdict(residuals.persistence)
    document["observed"] = asdict(profile.observed) if profile.observed else None
    document["measured_on"] = dict(profile.measured_on)
    return json.dumps({"version": VERSION, **document}, indent=2) + "\n"


def read_profile(path: Path) -> Profile:
    """A profile from a file. Raises ConfigurationError that names it."""
    try:
        return profile_of(json.loads(path.read_bytes()))
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror}") from None
    except KeyError as error:
        raise ConfigurationError(f"{path}: is no step-cost profile: no {error}") from None
    except (ValueError, TypeError, AttributeError) as error:
        raise ConfigurationError(f"{path}: is no step-cost profile: {error}") from None


def profile_of(document: Any) -> Profile:
    """The profile of a document. Raises KeyError, ValueError, TypeError, AttributeError."""
    version = document.get("version", 1)
    if version not in (1, VERSION):
        raise ValueError(f"version {version} is not known here, {VERSION} is")
    return Profile(
        name=str(document["name"]),
        about=str(document["about"]),
        cost=_cost(document["cost"]),
        estimate=bool(document["estimate"]),
        source=str(document["source"]),
        licence=str(document.get("licence", "")),
        residuals=_residuals(document, version),
        pool_tokens=_tokens(document, "pool_tokens", BLOCK),
        context_tokens=_tokens(document, "context_tokens", 2),
        host_blocks=int(document.get("host_blocks", 0)),
        move_s=float(document.get("move_s", 0.0)),
        observed=_observed(document.get("observed")),
        measured_on={str(k): str(v) for k, v in document.get("measured_on", {}).items()},
    )


def _cost(document: Any) -> LinearCost:
    seconds: dict[str, Any] = {name: float(document[f"{name}_s"]) for name in COEFFICIENTS}
    if not all(math.isfinite(each) and each >= 0 for each in seconds.values()):
        raise ValueError("coefficients are seconds, none of them negative")
    if not any(seconds.values()):
        raise ValueError("its steps take no time")
    return LinearCost(**seconds)


def _residuals(document: Mapping[str, Any], version: int) -> Residuals:
    quantiles = document.get("residuals", {})
    if version == 1:
        quantiles = {ALL: quantiles} if quantiles else {}
    return Residuals(
        {
            str(kind): {float(level): float(value) for level, value in levels.items()}
            for kind, levels in quantiles.items()
        },
        Persistence(**document.get("persistence", {})),
    )


def _tokens(document: Mapping[str, Any], key: str, least: int) -> int | None:
    value = document.get(key)
    if value is not None and (type(value) is not int or value < least):
        raise ValueError(f"{key} is a number of tokens, at least {least}")
    return value


def _observed(document: Any) -> Observed | None:
    return None if document is None else Observed(**document)
