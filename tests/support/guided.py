"""A real model under grammars, without HTTP: many answers at once, through one engine."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.structured.bounds import Unfit
from app.structured.compiler import Compiler
from app.structured.notation import translate
from app.text.tokenizer import Tokenizer
from engine.backends.base import Backend
from engine.blocks import BlockPool
from engine.clock import MonotonicClock
from engine.controls import RowControls
from engine.cost import LinearCost
from engine.grammar import Grammar
from engine.inbox import Submission
from engine.limits import Limits
from engine.loop import Engine
from engine.outputs import FinishReason, Look, Output
from engine.scheduler import Scheduler
from policies.fcfs import FCFS
from support.engines import NO_CPU_LIMIT, services

SCHEMAS = Path(__file__).parents[3] / "shared/traces/schemas"


def rows_of(name: str) -> list[dict[str, Any]]:
    """The lines of a file of schemas."""
    with gzip.open(SCHEMAS / name, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def sample_of(rows: Sequence[Any], size: int) -> Sequence[Any]:
    """About `size` of the rows, spread evenly; all of them for 0."""
    return rows[:: max(1, len(rows) // size)] if size else rows


@dataclass
class Tried:
    """What came of compiling schemas. starts: matchers by the number of the schema."""

    starts: dict[int, Any] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)


def compile_all(compiler: Compiler, schemas: Sequence[Any]) -> Tried:
    """Compile each schema as a request would have it compiled."""
    tried = Tried()
    for number, schema in enumerate(schemas):
        if isinstance(schema, bool):
            schema = {"allOf": [schema]}
        try:
            tried.starts[number] = compiler.compile(translate("json", json.dumps(schema)))
        except Unfit as reason:
            tried.refused[number] = str(reason)
    return tried


def accepts(start: Any, tokenizer: Tokenizer, text: str) -> bool:
    """Whether a grammar accepts a text as a whole."""
    matcher = start.deep_copy()
    tokens = tokenizer.encode(text, continues=True)
    accepted: int = matcher.try_consume_tokens(tokens)
    return accepted == len(tokens) and bool(matcher.is_accepting())


def answers(
    backend: Backend,
    tokenizer: Tokenizer,
    prompts: Mapping[int, Sequence[int]],
    grammars: Mapping[int, Grammar],
    *,
    temperature: float,
    max_tokens: int,
) -> dict[int, tuple[str, FinishReason]]:
    """What the model says to each prompt under its grammar, and how it ended."""
    outputs: dict[int, list[Output]] = defaultdict(list)

    def take(news: Sequence[Output], look: Look) -> None:
        for output in news:
            outputs[output.request].append(output)

    scheduler = Scheduler(
        FCFS(services=services()),
        BlockPool(backend.total_blocks),
        Limits(256, 64, 8192),
        guard=NO_CPU_LIMIT,
    )
    engine = Engine(
        scheduler=scheduler,
        backend=backend,
        clock=MonotonicClock(),
        cost=LinearCost(),
        emit=take,
    )
    engine.step(
        Submission(
            number,
            prompts[number],
            max_tokens,
            RowControls(
                temperature=temperature,
                seed=number,
                eos_ids=tokenizer.eos_ids,
                grammar=grammar,
            ),
            0.0,
        )
        for number, grammar in grammars.items()
    )
    while scheduler.live:
        engine.step(())
    said: dict[int, tuple[str, FinishReason]] = {}
    for number, news in outputs.items():
        finish = news[-1].finish
        assert finish is not None
        tokens = [token for output in news for token in output.tokens]
        said[number] = (tokenizer.decode(tokens), finish.reason)
    return said
