"""How fast the engine computes a model, driven directly: no HTTP, no second thread of Python.

In a round the prompts of a mix are computed, all at once (prefill), and then so many of them are
submitted again and generate: the prefix cache holds their KV, so that every row decodes from the
second step on. Rounds over all mixes and the machine's own rates follow each other, so that a busy
moment meets all of them; figures are medians of rounds.

A step of decoding is watched part by part. What is the scheduler's is all that happens around the
backend and the hand-over: mail, planning, packing, taking results in.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from rich.console import Console

from app.compose import Core, compose_engine
from app.config import Config
from engine.backends import measure_roofline
from engine.batch import Batch
from engine.blocks import blocks_for
from engine.capacity import KV_DTYPES, WEIGHT_BYTES, Roofline
from engine.controls import RowControls, Sampled, SampleRow
from engine.inbox import Submission
from engine.models.config import ModelConfig
from engine.models.files import read_config
from engine.models.shapes import expected_shapes
from engine.outputs import Look, Output
from loadtest.machine import Unmeasured

PARTS: Final = ("products", "attention", "glue", "sampling", "scheduler", "handover")
GREEDY: Final = RowControls(temperature=0.0, ignore_eos=True)


@dataclass(frozen=True, slots=True)
class Mix:
    """Requests of `prompt` tokens that generate `output`; at: how many decode together, in turn."""

    prompt: int
    output: int
    at: tuple[int, ...]


SHORT: Final = Mix(128, 64, (1, 8, 32, 64))
LONG: Final = Mix(2000, 64, (1, 8, 16))

Tick = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Measured:
    """One mix in one round, or the medians of rounds.

    prefill: prompt tokens a second. decode: generated tokens a second, by sequences; step: the
    median step, in seconds. parts: seconds of each of PARTS in a step at most sequences; those of
    the computing are None where nobody measures them.
    """

    prefill: float
    decode: Mapping[int, float]
    step: Mapping[int, float]
    parts: Mapping[str, float | None]


class Watch:
    """A backend that passes everything on and keeps what each step took, and an `emit` likewise."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._backend = core.engine.backend
        self._emit = core.engine.emit
        self._laps: dict[str, float] = defaultdict(float)
        core.engine.backend = self
        core.engine.emit = self.emit

    def take(self) -> dict[str, float]:
        """Seconds of `computing`, its parts if known, `sampling` and `handover`, since last."""
        laps, self._laps = self._laps, defaultdict(float)
        return laps

    def emit(self, outputs: Sequence[Output], look: Look) -> None:
        began = time.perf_counter()
        self._emit(outputs, look)
        self._laps["handover"] += time.perf_counter() - began

    @property
    def reads_arrays(self) -> bool:
        return self._backend.reads_arrays

    @property
    def total_blocks(self) -> int:
        return self._backend.total_blocks

    @property
    def host_blocks(self) -> int:
        return self._backend.host_blocks

    @property
    def move_seconds(self) -> float:
        return self._backend.move_seconds

    def submit(self, batch: Batch) -> int:
        began = time.perf_counter()
        ticket = self._backend.submit(batch)
        self._laps["computing"] += time.perf_counter() - began
        if self._core.model.times is not None:
            times = self._core.model.times()
            self._laps["products"] += times.products
            self._laps["attention"] += times.attention
        return ticket

    def sample(self, ticket: int, rows: Collection[SampleRow]) -> None:
        began = time.perf_counter()
        self._backend.sample(ticket, rows)
        self._laps["sampling"] += time.perf_counter() - began

    def collect(self, ticket: int) -> Sampled:
        return self._backend.collect(ticket)

    def close(self) -> None:
        self._backend.close()


class Bench:
    """A composed engine and the prompts it is measured with."""

    def __init__(self, config: Config, console: Console) -> None:
        """Load the model. Raises ConfigurationError."""
        self.core = compose_engine(_measurable(config), console, _drop)
        self._watch = Watch(self.core)
        self._rng = random.Random(0)
        self._ids = 0

    def fitting(self, mix: Mix) -> Mix:
        """A mix whose requests the model's context and the pool hold; there may be fewer of them.

        Raises Unmeasured if they do not hold one.
        """
        prompt = min(mix.prompt, self.core.max_model_len - mix.output - 1)
        if prompt < 1:
            raise Unmeasured(f"a context of {self.core.max_model_len} tokens is too short")
        room = self.core.model.backend.total_blocks // blocks_for(prompt + mix.output + 1)
        if room < min(mix.at):
            raise Unmeasured(f"the KV cache does not hold {prompt + mix.output} tokens")
        return replace(mix, prompt=prompt, at=tuple(n for n in mix.at if n <= room))

    def close(self) -> None:
        """Give the model's memory back."""
        self.core.close()

    def warm_up(self) -> None:
        """Let memory and caches grow to what steps need."""
        self._run(self._prompts(2, 32), 4)

    def measure(self, mix: Mix, tick: Tick) -> Measured:
        """One round of a mix; `tick` is called after the prompts and after each number at once."""
        prompts = self._prompts(max(mix.at), mix.prompt)
        began = time.perf_counter()
        self._run(prompts, 1)
        prefill = max(mix.at) * mix.prompt / (time.perf_counter() - began)
        tick()
        decode, step = {}, {}
        parts: Mapping[str, float | None] = {}
        for number in mix.at:
            steps, parts = self._decode(prompts[:number], mix.output)
            decode[number] = number * len(steps) / sum(steps)
            step[number] = statistics.median(steps)
            tick()
        return Measured(prefill, decode, step, parts)

    def _prompts(self, number: int, length: int) -> list[list[int]]:
        """Random ones that nobody has computed yet."""
        vocab = self.core.model.vocab_size
        return [[self._rng.randrange(vocab) for _ in range(length)] for _ in range(number)]

    def _run(self, prompts: Iterable[Sequence[int]], output: int) -> None:
        self._submit(prompts, output)
        while self.core.engine.scheduler.live:
            self.core.engine.step(())

    def _decode(
        self, prompts: Sequence[Sequence[int]], output: int
    ) -> tuple[list[float], Mapping[str, float | None]]:
        """Seconds of each step in which all rows decode, and the median of each part of them."""
        engine = self.core.engine
        self._submit(prompts, output + 1)
        seconds, parts = [], []
        while engine.scheduler.live:
            decoding = len(engine.scheduler.roster.decoding) == len(prompts)
            self._watch.take()
            began = time.perf_counter()
            engine.step(())
            took = time.perf_counter() - began
            if decoding:
                seconds.append(took)
                parts.append(self._parts(took, self._watch.take()))
        return seconds, medians(parts)

    def _parts(self, took: float, laps: Mapping[str, float]) -> dict[str, float | None]:
        """A step of `took` seconds, part by part."""
        computing, sampling, handover = (laps[k] for k in ("computing", "sampling", "handover"))
        products, attention = laps.get("products"), laps.get("attention")
        glue = None if products is None or attention is None else computing - products - attention
        return {
            "products": products,
            "attention": attention,
            "glue": glue,
            "sampling": sampling,
            "scheduler": took - computing - sampling - handover,
            "handover": handover,
        }

    def _submit(self, prompts: Iterable[Sequence[int]], output: int) -> None:
        engine = self.core.engine
        for prompt in prompts:
            self._ids += 1
            now = engine.clock.now()
            engine.scheduler.submit(Submission(self._ids, prompt, output, GREEDY, now), now)


# ── rounds and what they add up to ────────────────────────────────────────────────────────────


def measure_model(
    config: Config, console: Console, rounds: int, tick: Tick = lambda: None
) -> dict[str, Any]:
    """The figures of a model, as JSON; `tick` is called `TICKS` times a round.

    Raises ConfigurationError if the model cannot be had, Unmeasured if its context is too short.
    """
    bench = Bench(config, console)
    try:
        short, long = bench.fitting(SHORT), bench.fitting(LONG)
        bench.warm_up()
        machine, shorts, longs = [], [], []
        for _ in range(rounds):
            machine.append(measure_roofline())
            tick()
            shorts.append(bench.measure(short, tick))
            longs.append(bench.measure(long, tick))
    finally:
        bench.close()
    return report(config, bench.core, {short: median(shorts), long: median(longs)}, machine)


TICKS: Final = 1 + sum(1 + len(mix.at) for mix in (SHORT, LONG))


def report(
    config: Config, core: Core, found: Mapping[Mix, Measured], machine: Sequence[Roofline]
) -> dict[str, Any]:
    """Rates are tokens a second, steps milliseconds; `reached` is 1 where a rate is at its floor.

    found: the short mix, then the long one.
    """
    short, long = found.values()
    at_most = max(short.step)
    rates = Roofline(
        statistics.median(each.read_bytes_s for each in machine),
        statistics.median(each.int8_ops_s for each in machine),
    )
    model, kv_dtype = core.config.model, core.config.engine.kv_dtype
    return {
        "prefill_tok_s": short.prefill,
        "decode_tok_s": _named(short.decode),
        "step_ms": {str(n): 1e3 * seconds for n, seconds in short.step.items()},
        "long": {
            "prefill_tok_s": long.prefill,
            "decode_tok_s": _named(long.decode),
            "step_ms": {str(n): 1e3 * seconds for n, seconds in long.step.items()},
        },
        "roofline": {
            "read_gb_s": 1e-9 * rates.read_bytes_s,
            "int8_gops": 1e-9 * rates.int8_ops_s,
            "reached": _reached(core, model.dtype, kv_dtype, found, rates),
        },
        "share": shares(short.parts, short.step[at_most]),
        "model": model.served_name,
        "dtype": model.dtype,
        "kv_dtype": kv_dtype,
        "threads": core.model.threads,
        "native": core.model.native,
    }


def shares(parts: Mapping[str, float | None], step: float) -> dict[str, float | None]:
    """What fraction of a step each part is; None for what nobody measures."""
    return {name: None if took is None else took / step for name, took in parts.items()}


def median(rounds: Sequence[Measured]) -> Measured:
    """The medians of several rounds."""
    first = rounds[0]
    return Measured(
        statistics.median(each.prefill for each in rounds),
        {n: statistics.median(each.decode[n] for each in rounds) for n in first.decode},
        {n: statistics.median(each.step[n] for each in rounds) for n in first.step},
        medians([each.parts for each in rounds]),
    )


def medians(parts: Sequence[Mapping[str, float | None]]) -> dict[str, float | None]:
    """The median of each part; None for what nobody measures."""
    found = {name: [each[name] for each in parts] for name in PARTS}
    return {
        name: statistics.median(known) if (known := [v for v in values if v is not None]) else None
        for name, values in found.items()
    }


# ── the floor ─────────────────────────────────────────────────────────────────────────────────


def _reached(
    core: Core, dtype: str, kv_dtype: str, found: Mapping[Mix, Measured], rates: Roofline
) -> dict[str, Any] | None:
    """How much of what the machine can do each rate is; None where nothing is known of a model.

    A step reads every weight and the KV of its rows once, and multiplies each weight with each
    token, those of the head with the last of a prompt only. The arithmetic of attention, and
    whatever else is not a product of weights, counts as nothing.
    """
    if core.path is None or dtype != "int8":
        return None
    config = read_config(core.path)
    layers, head = _weights(config)
    token_bytes = config.kv_bytes_per_token(KV_DTYPES[kv_dtype])

    def step(number: int, context: float) -> float:
        read = (layers + head) * WEIGHT_BYTES[dtype] + number * context * token_bytes
        return max(read / rates.read_bytes_s, 2 * (layers + head) * number / rates.int8_ops_s)

    def reached(mix: Mix, measured: Measured) -> dict[str, Any]:
        context = mix.prompt + mix.output / 2
        return {
            "prefill": measured.prefill * 2 * layers / rates.int8_ops_s,
            "decode": {str(n): step(n, context) * rate / n for n, rate in measured.decode.items()},
        }

    short, long = (reached(mix, measured) for mix, measured in found.items())
    return {**short, "long": long}


def _weights(config: ModelConfig) -> tuple[int, int]:
    """Weights of all layers' matrices, and of the head's."""
    shapes = expected_shapes(config)
    layers = sum(math.prod(s) for n, s in shapes.items() if n.startswith("blk.") and len(s) == 2)
    return layers, config.vocab * config.hidden


def _measurable(config: Config) -> Config:
    """Rows for all mixes, and a prefix cache, by which what was computed can decode."""
    rows = max(config.engine.max_rows, *SHORT.at, *LONG.at)
    engine = {"max_rows": rows, "allocation": "paged", "prefix_cache": True}
    return config.model_copy(update={"engine": config.engine.model_copy(update=engine)})


def _named(by_number: Mapping[int, float]) -> dict[str, float]:
    return {str(number): value for number, value in by_number.items()}


def _drop(outputs: Sequence[Output], look: Look) -> None:
    """Look at the whole, as a server's bridge does; nobody reads what is computed here."""
    look()
