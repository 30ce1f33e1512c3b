"""The work that every engine is given, and how fast one did it."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

Prompt = Sequence[int]


@dataclass(frozen=True, slots=True)
class Work:
    """So many sequences at once, of `prompt` random tokens each, that generate `output` tokens."""

    prompt: int
    output: int
    sequences: int

    @property
    def name(self) -> str:
        return f"{self.prompt}x{self.sequences}"

    def prompts(self, vocab: int, seed: int) -> list[Prompt]:
        """Random prompts that no other seed repeats. Control tokens, which come first in a
        vocabulary, are left out."""
        rng = random.Random(f"{self.name}/{seed}")
        tokens = range(vocab // 16, vocab)
        return [rng.choices(tokens, k=self.prompt) for _ in range(self.sequences)]


SHORT: Final = tuple(Work(128, 64, sequences) for sequences in (1, 8, 32, 64))
LONG: Final = tuple(Work(2000, 64, sequences) for sequences in (1, 8, 16))
WORKS: Final = (*SHORT, *LONG)
BY_NAME: Final = {work.name: work for work in WORKS}

MOST_SEQUENCES: Final = max(work.sequences for work in WORKS)
LONGEST: Final = max(work.prompt + work.output for work in WORKS)


class PeerFailed(Exception):
    """An engine cannot be had, or does not do the work; the text says why, in one line."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Tokens a second. prefill: prompt tokens until all sequences have their first token. decode:
    generated tokens from then on. output: generated tokens over the whole time."""

    prefill: float
    decode: float
    output: float


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds in which all sequences got one token (`first`), and all their tokens (`whole`).

    Of two runs over different prompts, so that it does not matter whether an engine begins to
    decode one sequence before it has read the prompt of the next.
    """

    first: float
    whole: float


def rates(work: Work, samples: Sequence[Times]) -> Rates:
    """Of the medians of the samples' times, of which there is one or more.

    A sample's own decode rate would be a small difference of large times after a long prompt. It
    is 0 if the longer run is not the longer one, as happens on a machine that does something else.
    """
    first = statistics.median(sample.first for sample in samples)
    whole = statistics.median(sample.whole for sample in samples)
    generated = work.sequences * work.output
    decoded = generated - work.sequences
    return Rates(
        prefill=work.sequences * work.prompt / first,
        decode=decoded / (whole - first) if whole > first else 0.0,
        output=generated / whole,
    )


class Contender(Protocol):
    """An engine that is loaded and waits for work."""

    def measure(self, work: Work, seed: int) -> Times:
        """Do the work once. Raises PeerFailed."""
        ...

    def close(self) -> None:
        """Give back what it holds."""
        ...


Open = Callable[[], Contender]
"""Loads an engine. Raises PeerFailed."""
