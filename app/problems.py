"""What is wrong with a configuration, one line each."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from engine.errors import ConfigurationError, ModelError, UnfitMemory, UnfitShards


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong, under the dotted `key`; `where` is the source that said it."""

    key: str
    message: str
    where: str = ""

    def __str__(self) -> str:
        text = ": ".join(part for part in (self.where, self.key, self.message) if part)
        return " ".join(text.splitlines())


class BadConfiguration(ConfigurationError):
    """A configuration that cannot be used; its message has one line for each of `problems`."""

    def __init__(self, *problems: Problem) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems


def refuse(problems: Sequence[Problem]) -> None:
    """Raise BadConfiguration if there are problems."""
    if problems:
        raise BadConfiguration(*problems)


@contextmanager
def naming_the_key(key: str, memory: str = "engine") -> Iterator[None]:
    """Put the knob in front of what is wrong with the model that it names, with its memory, whose
    knobs are in the section `memory`, or with how many it is dealt to."""
    try:
        yield
    except UnfitMemory as error:
        raise BadConfiguration(Problem(f"{memory}.{error.knob}", str(error))) from error
    except UnfitShards as error:
        raise BadConfiguration(Problem("engine.tensor_parallel", str(error))) from error
    except ModelError as error:
        raise BadConfiguration(Problem(key, str(error))) from error


def nearest(word: str, known: Iterable[str], at_least: float = 0.5) -> str | None:
    """The name in `known` that `word` was probably meant to be.

    None if no name reaches the similarity `at_least`; 1 is equality.
    """
    matches = difflib.get_close_matches(word, list(known), n=1, cutoff=at_least)
    return matches[0] if matches else None


def suggest(word: str, known: Iterable[str], kind: str) -> str:
    """Say which of `known` is nearest to `word`; name them all when none is close."""
    names = sorted(known)
    if match := nearest(word, names):
        return f"did you mean {match}?"
    return f"known {kind}: {', '.join(names)}" if names else f"there are no {kind}"
