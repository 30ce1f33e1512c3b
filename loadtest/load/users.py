"""Who asks for what in a load test, read from YAML; no library of load tests is imported."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, TypeVar

import yaml

from engine.errors import ConfigurationError

T = TypeVar("T")

USUAL: Final = Path(__file__).with_name("users.yaml")


class UsersError(ConfigurationError):
    """A file of users that cannot be read; the message names the key."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Log-normal lengths in tokens, within bounds: two thirds lie between median / spread and
    median * spread."""

    median: float
    spread: float = 1.5
    least: int = 1
    most: int = 4096

    def __post_init__(self) -> None:
        if not (self.median > 0 and self.spread >= 1 and 1 <= self.least <= self.most):
            raise ValueError("median > 0, spread ≥ 1 and 1 ≤ least ≤ most must hold")

    def draw(self, chance: random.Random) -> int:
        length = round(self.median * math.exp(math.log(self.spread) * chance.gauss(0, 1)))
        return min(self.most, max(self.least, length))


@dataclass(frozen=True, slots=True)
class Group:
    """Users who behave alike. users.yaml says what each of these means."""

    name: str
    prompt_tokens: Lengths
    output_tokens: Lengths
    weight: int = 1
    service_tier: str | None = None
    key: str | None = None
    shared_prefix: float = 0.0
    think_s: float = 0.0

    def __post_init__(self) -> None:
        if not (self.weight >= 1 and 0 <= self.shared_prefix <= 1 and self.think_s >= 0):
            raise ValueError("weight ≥ 1, shared_prefix within 0 and 1, think_s ≥ 0 must hold")

    def thinking(self, chance: random.Random) -> float:
        """Seconds until the next request."""
        return chance.expovariate(1 / self.think_s) if self.think_s else 0.0


def read_groups(path: Path = USUAL) -> list[Group]:
    """The groups of a file. Raises UsersError for what is none."""
    try:
        said = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise UsersError(f"{path}: cannot be read: {error}") from None
    groups = said.get("groups") if isinstance(said, dict) else None
    if not isinstance(groups, dict) or not groups:
        raise UsersError(f"{path}: groups: expected at least one")
    return [_group(path, str(name), content) for name, content in groups.items()]


def _group(path: Path, name: str, said: Any) -> Group:
    where = f"{path}: groups.{name}"
    given = _table(where, said, Group)
    for lengths in ("prompt_tokens", "output_tokens"):
        if lengths not in given:
            raise UsersError(f"{where}.{lengths}: is missing")
        inner = _table(f"{where}.{lengths}", given[lengths], Lengths)
        given[lengths] = _made(f"{where}.{lengths}", Lengths, inner)
    return _made(where, Group, {**given, "name": name})


def _table(where: str, said: Any, kind: type) -> dict[str, Any]:
    if not isinstance(said, dict):
        raise UsersError(f"{where}: expected keys and values")
    known = {field.name for field in fields(kind)} - {"name"}
    for key in said:
        if key not in known:
            raise UsersError(f"{where}.{key}: is none of {', '.join(sorted(known))}")
    return dict(said)


def _made(where: str, kind: type[T], given: dict[str, Any]) -> T:
    try:
        return kind(**given)
    except (TypeError, ValueError) as error:
        raise UsersError(f"{where}: {error}") from None
