"""One request of a trace, whatever format the trace has."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Final

from engine.batch import BLOCK
from engine.prefix import KEY_BYTES

LATEST_S: Final = 1e12
"""Beyond it the clock is too coarse for steps; the year 9999 is before it."""

MOST_TOKENS: Final = 10_000_000
"""Of a prompt or an output: more than any model's context."""

MOST_NAME: Final = 2 ** (8 * KEY_BYTES - 1)
"""Names of blocks are below it; keys above are those of blocks without a name."""


@dataclass(frozen=True, slots=True)
class Prefix:
    """The content of a prompt by name: what begins with the same names has the same tokens.

    names: one integer for each `block_tokens` tokens, the last of which may be fewer. A name stands
    for its tokens and all tokens before, as a chained hash does. block_tokens: a multiple of BLOCK.
    answer: names of the blocks of BLOCK tokens that the answer fills, the first of which may begin
    with the end of the prompt; who goes on from the answer has them in its prompt.
    Raises ValueError for anything else.
    """

    names: tuple[int, ...]
    block_tokens: int = BLOCK
    answer: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.block_tokens < BLOCK or self.block_tokens % BLOCK:
            raise ValueError(f"a name stands for a multiple of {BLOCK} tokens")
        if not all(0 <= name < MOST_NAME // self._blocks for name in (*self.names, *self.answer)):
            raise ValueError("names of blocks are neither negative nor that large")

    @property
    def _blocks(self) -> int:
        """Blocks of the KV cache that have one name."""
        return self.block_tokens // BLOCK

    def keys(self, prompt_tokens: int) -> list[bytes]:
        """The keys of the full blocks of a prompt, as `Submission.prompt_keys` wants them."""
        each, full = self._blocks, prompt_tokens // BLOCK
        numbers = (name * each + i for name in self.names for i in range(each))
        return [number.to_bytes(KEY_BYTES, "big") for number in itertools.islice(numbers, full)]

    def answer_keys(self) -> list[bytes]:
        """The keys of the full blocks behind those of the prompt."""
        return [number.to_bytes(KEY_BYTES, "big") for number in self.answer]


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request: seconds since the trace's first one, lengths in tokens, and whose it is.

    output_tokens: how many are generated, no more and no fewer. priority: lower is more urgent;
    None is the class's. prefix: names of the prompt's content; None: it has nothing in common with
    any other. max_tokens: how many the client asks for, if that is more than it gets.
    Raises ValueError for what cannot be a request.
    """

    at: float
    prompt_tokens: int
    output_tokens: int
    tenant: str = "default"
    slo_class: str = "default"
    priority: int | None = None
    prefix: Prefix | None = None
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.at <= LATEST_S:
            raise ValueError(f"a request cannot arrive at {self.at} s")
        if self.prompt_tokens < 1 or self.output_tokens < 1:
            raise ValueError(
                f"a request of {self.prompt_tokens} prompt tokens and {self.output_tokens} output"
                " tokens: both must be at least 1"
            )
        if max(self.prompt_tokens, self.asked_tokens) > MOST_TOKENS:
            raise ValueError(f"a request has at most {MOST_TOKENS:,} prompt and output tokens each")
        if self.asked_tokens < self.output_tokens:
            raise ValueError(f"{self.output_tokens} output tokens where {self.max_tokens} may be")
        if self.prefix is not None:
            named = len(self.prefix.names) * self.prefix.block_tokens
            if not 0 <= named - self.prompt_tokens < self.prefix.block_tokens:
                raise ValueError(
                    f"{len(self.prefix.names)} names of {self.prefix.block_tokens} tokens for a"
                    f" prompt of {self.prompt_tokens}"
                )

    @property
    def asked_tokens(self) -> int:
        """Output tokens that the client asks for."""
        return self.output_tokens if self.max_tokens is None else self.max_tokens
