"""What is done to a trace before it is replayed: classes, long prompts beside, maxima asked."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Final

import yaml
from pydantic import Field, ValidationError

from app.config.document import compose, plain
from app.config.document import explain as explain_yaml
from app.config.schema import Positive
from app.config.section import Label, Section
from app.explain import explain
from app.problems import BadConfiguration, Problem
from engine.simulation.arrival import MOST_TOKENS
from loadtest.traces import Arrival

Tokens = Annotated[int, Field(ge=1, le=MOST_TOKENS)]


class Beside(Section):
    """Requests that come at fixed times, whatever the trace's load."""

    every_s: Annotated[float, Field(gt=0)] = Field(description="seconds between two of them")
    prompt_tokens: Tokens = Field(description="length of their prompts")
    output_tokens: Tokens = Field(description="length of their answers")

    def times(self, until: float) -> list[float]:
        """When they come, from the first period on."""
        return [self.every_s * i for i in range(1, int(until / self.every_s) + 1)]


class Workload(Section):
    """What is done to a trace."""

    requests: Positive | None = Field(
        default=None, description="only so many of the trace, the first ones; null: all"
    )
    classes: dict[Label, Annotated[float, Field(gt=0)]] = Field(
        default={}, description="classes drawn for the requests, with their parts; {}: the trace's"
    )
    asked_tokens: Tokens | None = Field(
        default=None, description="what clients ask for at most; null: what they get"
    )
    heaviest: Annotated[int, Field(ge=0)] = Field(
        default=0, description="so many tenants with most requests are a group besides"
    )
    beside: Beside | None = Field(default=None, description="requests at fixed times")

    def prepared(self, arrivals: Sequence[Arrival]) -> list[Arrival]:
        """The requests that are drawn from, with all that belongs to each. The same each time."""
        return self._asking(self._in_classes(arrivals[: self.requests]))

    def joined(self, arrivals: Sequence[Arrival]) -> list[Arrival]:
        """The requests as they are replayed: those at fixed times among them."""
        if self.beside is None or not arrivals:
            return list(arrivals)
        come = [
            Arrival(at, self.beside.prompt_tokens, self.beside.output_tokens)
            for at in self.beside.times(arrivals[-1].at)
        ]
        return sorted([*arrivals, *come], key=lambda arrival: arrival.at)

    def _in_classes(self, arrivals: Sequence[Arrival]) -> Sequence[Arrival]:
        if not self.classes:
            return arrivals
        chance = random.Random("classes 0")
        names, bounds = list(self.classes), list(accumulate(self.classes.values()))
        return [
            replace(each, slo_class=_at(names, bounds, chance.random() * bounds[-1]))
            for each in arrivals
        ]

    def _asking(self, arrivals: Sequence[Arrival]) -> list[Arrival]:
        if self.asked_tokens is None:
            return list(arrivals)
        return [
            replace(each, max_tokens=max(self.asked_tokens, each.output_tokens))
            for each in arrivals
        ]


PLAIN: Final = Workload()
"""The trace as it is."""


def _at(names: Sequence[str], bounds: Sequence[float], point: float) -> str:
    return next((n for n, bound in zip(names, bounds, strict=True) if point < bound), names[-1])


def read_workload(path: Path | None) -> Workload:
    """What a YAML file says; the trace as it is without one.

    Raises BadConfiguration that names the key.
    """
    if path is None:
        return PLAIN
    try:
        said = plain(compose(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "is not UTF-8 text"
        raise BadConfiguration(Problem("", f"cannot be read: {reason}", str(path))) from None
    except yaml.YAMLError as error:
        line, problem = explain_yaml(error)
        where = f"{path}:{line}" if line else str(path)
        raise BadConfiguration(Problem("", f"not YAML: {problem}", where)) from None
    try:
        return Workload.model_validate({} if said is None else said)
    except ValidationError as error:
        raise BadConfiguration(
            *(
                Problem(".".join(map(str, each["loc"])), explain(each), str(path))
                for each in error.errors(include_url=False)
            )
        ) from None
