"""What grammars cost: steps with guided requests beside free ones, masks, and hostile schemas.

Half of the requests follow a schema, then none does, in turns of who is first; prompts, rows and
lengths are the same. Forced tokens are off, since they make steps longer and answers shorter. Masks
are timed alone, along answers that the model gave. Last, schemas that take for ever are sent while
eight free requests decode.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, cast

import numpy as np
from rich.console import Console
from rich.table import Table

from app.compose import Core, compose_engine
from app.config import Config
from app.errors import ApiError
from app.structured.grammars import Grammars
from app.structured.matching import TokenMatcher
from app.structured.source import Source, json_source
from app.text.tokenizer import encode_prompt
from engine.controls import RowControls
from engine.grammar import Grammar
from engine.inbox import Submission
from engine.outputs import Look, Output

TEMPERATURES: Final = (0.0, 1.0)
REQUESTS: Final = 64
BESIDE: Final = 8
"""Free requests beside the hostile schemas."""

STEPS: Final = 48
PATIENCE: Final = 100
"""Steps before and after the hostile schemas at least."""

Tick = Callable[[], None]

PERSON: Final = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "city": {"enum": ["Lisbon", "Oslo", "Seoul", "Quito"]},
        "tags": {"type": "array", "items": {"type": "string"}, "minItems": 2, "maxItems": 4},
    },
    "required": ["name", "age", "city", "tags"],
    "additionalProperties": False,
}
SCHEMAS: Final[Sequence[Mapping[str, Any]]] = (
    {"type": "array", "items": PERSON, "minItems": 100},
    {"type": "array", "items": {"type": "number"}, "minItems": 100},
    {"type": "object", "additionalProperties": {"type": "string"}, "minProperties": 100},
    {"type": "array", "items": {"type": "string", "format": "date-time"}, "minItems": 100},
)
"""Of answers that do not come to an end."""

DOUBLING: Final = "start: A0\n" + "".join(f"A{i}: A{i + 1} A{i + 1}\n" for i in range(40))
HOSTILE: Final = (
    *(Source("grammar", f'{DOUBLING}A40: "{end}"', "p") for end in "abc"),
    *(Source("regex", f"{end}?" * 2000, "p") for end in "abc"),
    *(
        json_source({"properties": {f"{end}{i}": {} for i in range(2000)}, "type": "object"}, "p")
        for end in "abc"
    ),
)
"""Nine that take seconds, or for ever."""


@dataclass(frozen=True, slots=True)
class Steps:
    """Median milliseconds of a step. ratio: the median of the rounds' own ratios."""

    free_ms: float
    guided_ms: float
    ratio: float


@dataclass(frozen=True, slots=True)
class Beside:
    """Milliseconds of steps of free requests: the median and the longest, alone and beside hostile
    schemas. refused: how many of those were."""

    alone_ms: float
    longest_alone_ms: float
    beside_ms: float
    longest_ms: float
    refused: int


@dataclass(frozen=True, slots=True)
class Structured:
    """steps: by temperature. mask_us: microseconds of a mask, median, and of a hundred the one that
    takes longest."""

    steps: dict[str, Steps]
    mask_us: float
    mask_p99_us: float
    hostile: Beside


class Bench:
    """An engine, and grammars that it can follow."""

    def __init__(self, config: Config, console: Console) -> None:
        """Load the model. Raises ConfigurationError."""
        self._outputs: list[Output] = []
        self.core: Core = compose_engine(config, console, self._take)
        structured = config.structured.model_copy(update={"forced_tokens": False})
        self.grammars = Grammars(structured, self.core.tokenizer)
        self._prompt = encode_prompt(self.core.tokenizer, "A list of people, as JSON:\n")
        self._ids = 0
        self.guided: list[Grammar] = []

    def compile(self, schemas: Sequence[Mapping[str, Any]]) -> None:
        """Have grammars for those who are to be guided."""

        async def made() -> list[Grammar]:
            return [await self.grammars.get(json_source(schema, "p")) for schema in schemas]

        self.guided = asyncio.run(made())

    def _take(self, outputs: Sequence[Output], look: Look) -> None:
        look()
        self._outputs.extend(outputs)

    def submit(self, count: int, guided: int, temperature: float) -> list[int]:
        """So many requests, the first of them guided; steps until all of them decode."""
        engine = self.core.engine
        grammars = itertools.cycle(self.guided)
        first = self._ids + 1
        self._outputs.clear()
        for number in range(count):
            self._ids += 1
            controls = RowControls(
                temperature,
                seed=number,
                eos_ids=self.core.tokenizer.eos_ids,
                ignore_eos=True,
                grammar=next(grammars) if number < guided else None,
            )
            prompt, most = self._prompt, self.core.max_model_len - len(self._prompt)
            now = engine.clock.now()
            engine.scheduler.submit(Submission(self._ids, prompt, most, controls, now), now)
        ids = list(range(first, self._ids + 1))
        while {output.request for output in self._outputs} < set(ids):
            engine.step(())
        return ids

    def step(self) -> float:
        """Milliseconds of one step."""
        began = time.perf_counter()
        self.core.engine.step(())
        return 1e3 * (time.perf_counter() - began)

    def end(self, ids: Sequence[int]) -> dict[int, list[int]]:
        """Abort requests; what each was answered."""
        answers: dict[int, list[int]] = {each: [] for each in ids}
        for output in self._outputs:
            answers[output.request] += output.tokens
        for each in ids:
            self.core.engine.scheduler.abort(each)
        self.core.engine.step(())
        return answers

    def phase(self, guided: int, temperature: float, steps: int) -> tuple[float, list[list[int]]]:
        """The median step of so many, and the answers of who was guided."""
        ids = self.submit(REQUESTS, guided, temperature)
        median = statistics.median(self.step() for _ in range(steps))
        answers = self.end(ids)
        return median, [answers[each] for each in ids[:guided]]

    def masks(self, answers: Sequence[Sequence[int]]) -> list[float]:
        """Microseconds of each mask along answers of guided requests."""
        words = np.empty(-(-self.core.tokenizer.vocab_size // 32), np.int32)
        took: list[float] = []
        for tokens, grammar in zip(answers, itertools.cycle(self.guided), strict=False):
            matcher = cast("TokenMatcher", grammar.matcher())
            for token in tokens:
                began = time.perf_counter()
                matcher.fill(words)
                took.append(1e6 * (time.perf_counter() - began))
                matcher.accept(token)
        return took

    def hostile(self, sources: Sequence[Source]) -> Beside:
        """What free requests notice of schemas that take for ever."""
        ids = self.submit(BESIDE, 0, 0.0)
        alone = [self.step() for _ in range(PATIENCE)]
        refused = 0

        async def all_at_once() -> list[Any]:
            wanted = (self.grammars.get(source) for source in sources)
            return await asyncio.gather(*wanted, return_exceptions=True)

        def send() -> None:
            nonlocal refused
            refused = sum(isinstance(each, ApiError) for each in asyncio.run(all_at_once()))

        sender = threading.Thread(target=send)
        sender.start()
        beside = [self.step() for _ in _until(lambda: not sender.is_alive())]
        sender.join()
        self.end(ids)
        return Beside(
            statistics.median(alone), max(alone), statistics.median(beside), max(beside), refused
        )

    def close(self) -> None:
        """Give the model's memory back, and end processes."""
        self.grammars.close()
        self.core.model.backend.close()


def measure_structured(
    config: Config, console: Console, rounds: int, tick: Tick = lambda: None, steps: int = STEPS
) -> Structured:
    """Steps at each temperature, masks, and what hostile schemas do.

    Raises ConfigurationError if the model cannot be had.
    """
    bench = Bench(config, console)
    try:
        bench.compile(SCHEMAS)
        bench.phase(REQUESTS // 2, 0.0, 4)  # warm up
        took: list[float] = []
        by_temperature: dict[str, Steps] = {}
        for temperature in TEMPERATURES:
            pairs: list[tuple[float, float]] = []
            for turn in range(rounds):
                found: dict[int, float] = {}
                for guided in (0, REQUESTS // 2)[:: 1 if turn % 2 else -1]:
                    found[guided], answers = bench.phase(guided, temperature, steps)
                    took += bench.masks(answers)
                pairs.append((found[0], found[REQUESTS // 2]))
                tick()
            by_temperature[f"{temperature:g}"] = Steps(
                statistics.median(free for free, _ in pairs),
                statistics.median(guided for _, guided in pairs),
                statistics.median(guided / free for free, guided in pairs),
            )
        hostile = bench.hostile(HOSTILE)
        tick()
    finally:
        bench.close()
    p99 = statistics.quantiles(took, n=100)[-1]
    return Structured(by_temperature, statistics.median(took), p99, hostile)


def ticks(rounds: int) -> int:
    """How often `measure_structured` ticks."""
    return len(TEMPERATURES) * rounds + 1


def as_json(found: Structured) -> dict[str, Any]:
    """The figures as JSON."""
    made: dict[str, Any] = json.loads(json.dumps(asdict(found)))
    return made


def table(found: Structured) -> Table:
    """A row for each figure."""
    half = REQUESTS // 2
    made = Table(title="Structured outputs", show_header=False)
    made.add_column()
    made.add_column(justify="right")
    made.add_column()
    for temperature, steps in found.steps.items():
        made.add_row(
            f"a step of {half} guided and {half} free requests, temperature {temperature}",
            f"{steps.guided_ms:.1f} ms",
            f"{steps.ratio - 1:+.1%} on {steps.free_ms:.1f} ms of {REQUESTS} free ones;"
            " goal < +10%",
        )
    made.add_row("a mask", f"{found.mask_us:.0f} µs", f"p99 {found.mask_p99_us:.0f}; goal < 100")
    hostile = found.hostile
    made.add_row(
        f"a step of {BESIDE} free requests beside {len(HOSTILE)} hostile schemas",
        f"{hostile.beside_ms:.1f} ms",
        f"{hostile.alone_ms:.1f} ms alone",
    )
    made.add_row(
        "the longest of these",
        f"{hostile.longest_ms:.1f} ms",
        f"{hostile.longest_alone_ms:.1f} ms alone; {hostile.refused} of them were refused",
    )
    return made


def _until(done: Callable[[], bool]) -> Iterator[int]:
    """Numbers until something is done, and then `PATIENCE` more."""
    counted = itertools.count()
    while not done():
        yield next(counted)
    yield from range(PATIENCE)
