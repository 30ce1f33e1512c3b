"""What guesses bring: tokens a second of one sequence, with speculative decoding and without.

In a round each prompt is answered without guesses, and with them, in turns of who is first; the
first token of an answer is not measured. Answers must be the same: those that part are counted.
Prompts are of three kinds: answers that repeat them, code that is to be changed a little, and
questions whose answers repeat nothing; whoever has published prompts names their file.
"""

from __future__ import annotations

import gzip
import itertools
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from app.compose import Core, compose_engine
from app.config import Config
from app.text.template import encode_segments
from app.text.tokenizer import encode_prompt
from engine.controls import RowControls
from engine.inbox import Submission
from engine.outputs import Look, Output
from loadtest.accuracy import read_text

TEMPERATURES: Final = (0.0, 1.0)
MOST_TOKENS: Final = 200
"""Of an answer."""

MOST_GIVEN: Final = 80
"""Prompts of a file that are answered."""

Tick = Callable[[], None]

CODE: Final = (
    """def area(width, height):
    total = width * height
    return total


def volume(width, height, depth):
    base = area(width, height)
    return base * depth


def print_box(width, height, depth):
    print("box:", width, height, depth)
    print("area:", area(width, height))
    print("volume:", volume(width, height, depth))
""",
    """class Account:
    def __init__(self, owner):
        self.owner = owner
        self.balance = 0

    def deposit(self, amount):
        if amount <= 0:
            raise ValueError("the amount must be positive")
        self.balance = self.balance + amount
        return self.balance

    def withdraw(self, amount):
        if amount > self.balance:
            raise ValueError("the balance is too small")
        self.balance = self.balance - amount
        return self.balance
""",
)
RENAMED: Final = ((CODE[0], "width", "breadth"), (CODE[0], "depth", "size"))
RENAMED_TOO: Final = ((CODE[1], "amount", "money"), (CODE[1], "owner", "name"))

PROSE: Final = (
    "The quick brown fox jumps over the lazy dog. Every morning the farmer walks to the market with"
    " three baskets of apples, two jars of honey and a small bag of salt. He sells them to the"
    " baker, who gives him bread for the week.",
    "The meeting was moved from Monday to Thursday. Please bring the printed report, the list of"
    " open questions and your notes from the last meeting. We will start at nine and end before"
    " noon, so that everybody can take the early train home.",
    "To make the soup, cut two onions and three carrots into small pieces. Fry them in butter for"
    " five minutes. Add one litre of water, a cup of lentils and a little salt. Let it boil for"
    " half an hour, and stir it from time to time.",
)

QUESTIONS: Final = (
    "Why is the sky blue?",
    "Write a short story about a dragon who is afraid of fire.",
    "What should I think of before I buy a used car?",
    "Explain how a bicycle stays upright.",
    "Give me three ideas for a birthday party in winter.",
    "How do I write a polite letter to my neighbour about noise?",
    "What is the difference between weather and climate?",
    "Describe a sunrise over the sea.",
)


def own_prompts() -> dict[str, list[str]]:
    """Prompts that are always there, by kind."""
    speeches = [each for each in read_text("drama").split("\n\n") if 200 < len(each) < 500]
    texts = [*PROSE, *speeches[:3]]
    changes = [*RENAMED, *RENAMED_TOO]
    return {
        "repeat a text": [f"Repeat this text word for word:\n\n{text}" for text in texts],
        "change code": [
            f"Rename {old} to {new} in this code. Write the whole code again:\n\n{code}"
            for code, old, new in changes
        ],
        "questions": list(QUESTIONS),
    }


def read_prompts(path: Path) -> list[str]:
    """The first prompts of JSON lines, plain or gzipped: `prompt`, or the first of `turns`.

    Raises ValueError for anything else, OSError if it cannot be read.
    """
    saved = path.read_bytes()
    text = (gzip.decompress(saved) if path.suffix == ".gz" else saved).decode("utf-8")
    rows = [json.loads(line) for line in itertools.islice(text.splitlines(), MOST_GIVEN)]
    prompts = []
    for row in rows:
        known = isinstance(row, dict) and (row.get("prompt") or row.get("turns"))
        prompt = known[0] if isinstance(known, list) else known
        if not isinstance(prompt, str):
            raise ValueError("a line has neither a prompt nor turns")
        prompts.append(prompt)
    return prompts


@dataclass(frozen=True, slots=True)
class Answer:
    """tokens: of the whole answer; measured: those that `seconds` are of."""

    tokens: list[int]
    measured: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Gain:
    """What guesses brought with some prompts at one temperature.

    none, guessed: tokens a second without guesses, and with them. ratio: their quotient; lowest:
    that of the prompt with the smallest, medians of rounds. accepted: the share of guesses that
    were right; per_step: tokens a decoding step. parted: answers that were not the same.
    """

    none: float
    guessed: float
    ratio: float
    lowest: float
    accepted: float
    per_step: float
    parted: int


class Bench:
    """An engine that guesses, or not."""

    def __init__(self, config: Config, console: Console) -> None:
        """Load the model. Raises ConfigurationError."""
        self._outputs: list[Output] = []
        self.core: Core = compose_engine(_guessing(config), console, self._take)
        planner = self.core.engine.scheduler.planner
        self._planner, self._speculation = planner, planner.speculation
        self._ids = 0

    def _take(self, outputs: Sequence[Output], look: Look) -> None:
        look()
        self._outputs.extend(outputs)

    def encode(self, prompt: str) -> list[int]:
        """The token ids of a user's turn, or of the text where the model has no template."""
        core = self.core
        if core.template is None:
            return encode_prompt(core.tokenizer, prompt)
        turns = [{"role": "user", "content": prompt}]
        return encode_segments(core.tokenizer, core.template.render(turns))

    def answer(self, prompt: list[int], temperature: float, *, guessing: bool) -> Answer:
        """Let the engine answer; the time is that from the first token on."""
        engine, outputs = self.core.engine, self._outputs
        self._planner.speculation = self._speculation if guessing else None
        self._ids += 1
        outputs.clear()
        controls = RowControls(temperature, seed=7, eos_ids=self.core.tokenizer.eos_ids)
        most = min(MOST_TOKENS, self.core.max_model_len - len(prompt))
        now = engine.clock.now()
        engine.scheduler.submit(Submission(self._ids, prompt, most, controls, now), now)
        while not outputs:
            engine.step(())
        began, before = time.perf_counter(), sum(len(each.tokens) for each in outputs)
        while engine.scheduler.live:
            engine.step(())
        seconds = time.perf_counter() - began
        tokens = [token for output in outputs for token in output.tokens]
        return Answer(tokens, len(tokens) - before, seconds)

    def gain(self, prompts: Sequence[list[int]], temperature: float, rounds: int) -> Gain:
        """With and without, in turns of who is first."""
        counters = self.core.engine.scheduler.counters
        before = counters.copy()
        pairs: list[list[tuple[Answer, Answer]]] = []
        for number, prompt in enumerate(prompts):
            found = []
            for turn in range(rounds):
                first = (number + turn) % 2 == 0
                one = self.answer(prompt, temperature, guessing=first)
                other = self.answer(prompt, temperature, guessing=not first)
                found.append((other, one) if first else (one, other))
            if found[0][0].measured > 0:
                pairs.append(found)
        without = [statistics.median(none.seconds for none, _ in found) for found in pairs]
        guessed = [statistics.median(with_.seconds for _, with_ in found) for found in pairs]
        tokens = sum(found[0][0].measured for found in pairs)
        drafted = counters.draft_tokens - before.draft_tokens
        accepted = counters.accepted_tokens - before.accepted_tokens
        return Gain(
            none=tokens / sum(without),
            guessed=tokens / sum(guessed),
            ratio=sum(without) / sum(guessed),
            lowest=min(a / b for a, b in zip(without, guessed, strict=True)),
            accepted=accepted / drafted if drafted else 0.0,
            per_step=tokens * rounds / (tokens * rounds - accepted),
            parted=sum(a.tokens != b.tokens for found in pairs for a, b in found),
        )

    def close(self) -> None:
        """Give the model's memory back."""
        self.core.close()


def measure_speculation(
    config: Config,
    console: Console,
    given: Mapping[str, Sequence[str]],
    rounds: int,
    tick: Tick = lambda: None,
) -> dict[str, dict[str, Gain]]:
    """By kind of prompt, and by temperature. given: more prompts, by name.

    Raises ConfigurationError if the model cannot be had.
    """
    bench = Bench(config, console)
    gains: dict[str, dict[str, Gain]] = {}
    try:
        kinds = {**own_prompts(), **given}
        longest = bench.core.max_model_len - 16
        bench.answer(bench.encode(QUESTIONS[0])[:longest], 0.0, guessing=True)  # warm up
        for kind, prompts in kinds.items():
            encoded = [bench.encode(prompt)[:longest] for prompt in prompts]
            for temperature in TEMPERATURES:
                gain = bench.gain(encoded, temperature, rounds)
                gains.setdefault(kind, {})[f"{temperature:g}"] = gain
                tick()
    finally:
        bench.close()
    return gains


def ticks(given: Mapping[str, Sequence[str]]) -> int:
    """How often `measure_speculation` ticks."""
    return len(TEMPERATURES) * (len(own_prompts()) + len(given))


def as_json(gains: Mapping[str, Mapping[str, Gain]]) -> dict[str, dict[str, dict[str, Any]]]:
    """The gains by kind of prompt and temperature, as JSON."""
    return {
        kind: {temperature: asdict(gain) for temperature, gain in by_temperature.items()}
        for kind, by_temperature in gains.items()
    }


def table(gains: Mapping[str, Mapping[str, Gain]], method: str) -> Table:
    """A row for each kind of prompt and temperature. method: of guessing."""
    made = Table(
        title=f"One sequence with guesses ({method}) and without",
        caption="lowest: of the prompt that gains least; goal at temperature 0: ≥ 1.5 where answers"
        " repeat prompts, never < 0.97",
    )
    for name in (
        "prompts",
        "temperature",
        "none",
        method,
        "times",
        "lowest",
        "accepted",
        "a step",
    ):
        made.add_column(name, justify="left" if name == "prompts" else "right")
    for kind, by_temperature in gains.items():
        for temperature, gain in by_temperature.items():
            made.add_row(
                kind,
                temperature,
                f"{gain.none:,.0f} tok/s",
                f"{gain.guessed:,.0f} tok/s",
                f"{gain.ratio:.2f}",
                f"{gain.lowest:.2f}",
                f"{gain.accepted:.0%}",
                f"{gain.per_step:.2f} tok",
            )
    return made


def method_of(config: Config) -> str:
    """How is guessed: as the configuration says, or from the text."""
    method = config.engine.speculation.method
    return "ngram" if method == "none" else method


def _guessing(config: Config) -> Config:
    """The configuration with guesses."""
    update = {"method": method_of(config)}
    speculation = config.engine.speculation.model_copy(update=update)
    engine = config.engine.model_copy(update={"speculation": speculation})
    return config.model_copy(update={"engine": engine})
