"""What int8 costs in accuracy: perplexity of shipped texts on the served path.

A text is cut into windows of CONTEXT tokens, each a sequence of its own, computed in chunks over a
paged cache as a long prompt is. Every token but the first of a window is scored by the probability
that the model gave it; the perplexity is exp(- mean log-probability). Weights are kept in float32
and int8 (activations are int8 where weights are), the KV cache in each of its formats. All score
the same tokens, so their differences are far smaller than what the texts themselves vary by.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from app.text.calibration import calibration_tokens
from app.text.files import load_tokenizer
from app.text.tokenizer import encode_prompt
from engine.backends import load_on_cpu
from engine.backends.base import Backend
from engine.batch import BLOCK, Batch, Rows
from engine.blocks import blocks_for
from engine.capacity import KV_DTYPES
from engine.controls import RowControls, SampleRow
from engine.models.files import read_config

DOMAINS: Final = ("drama", "code")

FLOAT32: Final = "float32"
INT8: Final = "int8"
SEVEN_BITS: Final = "int8 of 7 bits"
WEIGHTS: Final[Mapping[str, tuple[str, int | None]]] = {
    FLOAT32: ("float32", None),
    INT8: ("int8", 8),
    SEVEN_BITS: ("int8", 7),
}
"""How weights are kept, as `load_on_cpu` is told. 7 bits: where products of 8 are not exact."""

KV_FORMATS: Final = ("float32", "bfloat16", "int8")

BOUNDS: Final = {"float32": 0.01, "int8": 0.015}
"""What int8 weights may add to the perplexity at most, by the format of the KV cache."""

CONTEXT: Final = 1024
CHUNK: Final = 512
WINDOWS: Final = 8
"""Windows of each text."""

Logprobs = npt.NDArray[np.float64]
Kept: TypeAlias = tuple[str, str]
"""A name in WEIGHTS and one in KV_FORMATS."""

KEPT: Final[tuple[Kept, ...]] = tuple((weights, kv) for weights in WEIGHTS for kv in KV_FORMATS)


@dataclass(frozen=True, slots=True)
class Score:
    """How well a text was foretold. increase: of the perplexity over that of the first, as a
    fraction; error: its standard error over the text's tokens."""

    perplexity: float
    increase: float
    error: float


Scores: TypeAlias = dict[str, dict[Kept, Score]]
"""By domain."""


def measure_accuracy(
    model: Path,
    tick: Callable[[], None] = lambda: None,
    *,
    folder: Path | None = None,
    kept: Sequence[Kept] = KEPT,
) -> Scores:
    """The scores of each domain, all against the first of `kept`; `tick` is called after a window.

    model: a GGUF file or a Hugging Face folder; folder: where int8 weights are kept. Raises
    ModelError for a model that cannot be served, ValueError for one of a context shorter than
    CONTEXT.
    """
    config = read_config(model)
    if config.context_length < CONTEXT:
        raise ValueError(f"its context of {config.context_length} tokens is less than {CONTEXT}")
    tokenizer = load_tokenizer(model)
    texts = {name: windows(encode_prompt(tokenizer, read_text(name))) for name in DOMAINS}
    found: dict[str, dict[Kept, Logprobs]] = {name: {} for name in DOMAINS}
    for weights, kv_dtype in kept:
        dtype, bits = WEIGHTS[weights]
        backend = load_on_cpu(
            model,
            dtype=dtype,
            weight_bits=bits,
            calibration=calibration_tokens(tokenizer),
            folder=folder,
            kv_memory_bytes=blocks_for(CONTEXT)
            * BLOCK
            * config.kv_bytes_per_token(KV_DTYPES[kv_dtype]),
            kv_dtype=kv_dtype,
        ).backend
        for name, cut in texts.items():
            scored = []
            for window in cut:
                scored.append(score(backend, window, CHUNK))
                tick()
            found[name][weights, kv_dtype] = np.concatenate(scored)
        backend.close()
    return {name: compare(by_format) for name, by_format in found.items()}


def read_text(domain: str) -> str:
    """The text of one of DOMAINS."""
    saved = json.loads((files("loadtest.texts") / f"{domain}.json").read_text(encoding="utf-8"))
    return "".join(f"{line}\n" for line in saved["text"])


def windows(tokens: Sequence[int]) -> list[Sequence[int]]:
    """The first WINDOWS windows of CONTEXT tokens. Raises ValueError if a text has fewer tokens."""
    if len(tokens) < WINDOWS * CONTEXT:
        raise ValueError(f"{len(tokens)} tokens are fewer than {WINDOWS * CONTEXT}")
    return [tokens[i * CONTEXT : (i + 1) * CONTEXT] for i in range(WINDOWS)]


def score(backend: Backend, tokens: Sequence[int], chunk: int) -> Logprobs:
    """The log-probability of each token but the first, [len(tokens) - 1].

    Computed in chunks of `chunk` tokens over the first blocks of the backend, last block first, so
    that slots are not what positions are.
    """
    scored = [_submit(backend, batch, tokens) for batch in _batches(tokens, chunk)]
    return np.concatenate(scored)


def compare(by_format: dict[Kept, Logprobs]) -> dict[Kept, Score]:
    """What each way to keep them makes of the same tokens, against the first."""
    base = next(iter(by_format.values()))
    return {name: _score(logprobs, base) for name, logprobs in by_format.items()}


def _score(logprobs: Logprobs, base: Logprobs) -> Score:
    worse = base - logprobs
    ratio = math.exp(worse.mean())
    error = ratio * worse.std(ddof=1) / math.sqrt(len(worse))
    return Score(math.exp(-logprobs.mean()), ratio - 1, float(error))


def _batches(tokens: Sequence[int], chunk: int) -> Iterator[Batch]:
    """One sequence, a chunk a step, with the logits of every token whose successor is known."""
    table = np.arange(blocks_for(len(tokens)))[::-1]
    for step, start in enumerate(range(0, len(tokens), chunk)):
        positions = np.arange(start, min(start + chunk, len(tokens)))
        end = int(positions[-1]) + 1
        held = table[: blocks_for(end)]
        known = np.arange(min(end, len(tokens) - 1) - start)
        yield Batch(
            step=step,
            rows=Rows([(0, 0)], [start], [len(positions)], [True]),
            token_ids=_int32(tokens[start:end]),
            positions=_int32(positions),
            slots=_int32(table[positions // BLOCK] * BLOCK + positions % BLOCK),
            qo_indptr=_int32([0, len(positions)]),
            kv_indptr=_int32([0, len(held)]),
            kv_indices=_int32(held),
            last_page_len=_int32([(end - 1) % BLOCK + 1]),
            sample_rows=_int32(np.zeros_like(known)),
            logit_rows=_int32(known),
        )


def _submit(backend: Backend, batch: Batch, tokens: Sequence[int]) -> Logprobs:
    """Compute a chunk, with each sampled token forced to be the one that follows."""
    positions = batch.positions[batch.logit_rows] + 1
    rows = [SampleRow(_only(tokens[p]), 0, p, tokens, len(tokens)) for p in positions.tolist()]
    ticket = backend.submit(batch)
    backend.sample(ticket, rows)
    sampled = backend.collect(ticket)
    return np.array([each.logprob for each in sampled.logprobs if each is not None])


def _only(token: int) -> RowControls:
    """Sample this token, and say how probable the raw logits make it."""
    return RowControls(temperature=0, allowed_ids=frozenset((token,)), logprobs=0)


def _int32(values: npt.ArrayLike) -> npt.NDArray[np.int32]:
    return np.ascontiguousarray(values, dtype=np.int32)
