"""Which of the processes that compute one model this one is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engine.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Place:
    """rank: this process's number, of `world`; 0 leads. local_rank: its number on this machine, of
    `local_world`, and that of the GPU it takes."""

    rank: int = 0
    world: int = 1
    local_rank: int = 0
    local_world: int = 1

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Place:
        """What torchrun says in the environment (https://docs.pytorch.org/docs/stable/elastic).

        One process without any of it. Raises ConfigurationError for what makes no sense.
        """
        world = _number(environment, "WORLD_SIZE", 1)
        if world == 1:
            return cls()
        rank = _number(environment, "RANK", None)
        place = cls(
            rank=rank,
            world=world,
            local_rank=_number(environment, "LOCAL_RANK", rank),
            local_world=_number(environment, "LOCAL_WORLD_SIZE", world),
        )
        if place.rank >= world:
            raise ConfigurationError(f"RANK is {rank}, which is not one of WORLD_SIZE = {world}")
        for name in ("MASTER_ADDR", "MASTER_PORT"):
            if name not in environment:
                raise ConfigurationError(f"WORLD_SIZE is {world}, but there is no {name}")
        return place


def _number(environment: Mapping[str, str], name: str, default: int | None) -> int:
    text = environment.get(name)
    if text is None and default is not None:
        return default
    if text is None or not text.isdecimal():
        said = "missing" if text is None else repr(text)
        raise ConfigurationError(f"{name} should be a number, as torchrun sets it; it is {said}")
    return int(text)
