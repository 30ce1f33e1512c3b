"""What a format of the KV cache costs in accuracy: perplexity of shipped texts on the served path.

A text is cut into windows of CONTEXT tokens, each a sequence of its own, computed in chunks over a
paged cache as a long prompt is. Every token but the first of a window is scored by the probability
that the model gave it; the perplexity is exp(- mean log-probability). All formats score the same
tokens, so their differences are far smaller than what the texts themselves vary by.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

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
FORMATS: Final = ("float32", "bfloat16", "int8")

CONTEXT: Final = 1024
CHUNK: Final = 512
WINDOWS: Final = 4
"""Windows of each text."""

Logprobs = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Score:
    """How well a text was foretold. increase: of the perplexity over that of the first format, as a
    fraction; error: its standard error over the text's tokens."""

    perplexity: float
    increase: float
    error: float


def measure_accuracy(
    model: Path, tick: Callable[[], None] = lambda: None
) -> dict[str, dict[str, Score]]:
    """The scores of each domain in each format; `tick` is called after each window.

    model: a GGUF file or a Hugging Face folder. Raises ModelError for one that cannot be served,
    ValueError for one of a context shorter than CONTEXT.
    """
    config = read_config(model)
    if config.context_length < CONTEXT:
        raise ValueError(f"its context of {config.context_length} tokens is less than {CONTEXT}")
    tokenizer = load_tokenizer(model)
    texts = {name: windows(encode_prompt(tokenizer, read_text(name))) for name in DOMAINS}
    found: dict[str, dict[str, Logprobs]] = {name: {} for name in DOMAINS}
    for kv_dtype in FORMATS:
        memory = blocks_for(CONTEXT) * BLOCK * config.kv_bytes_per_token(KV_DTYPES[kv_dtype])
        backend = load_on_cpu(model, kv_memory_bytes=memory, kv_dtype=kv_dtype).backend
        for name, cut in texts.items():
            scored = []
            for window in cut:
                scored.append(score(backend, window, CHUNK))
                tick()
            found[name][kv_dtype] = np.concatenate(scored)
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


def compare(by_format: dict[str, Logprobs]) -> dict[str, Score]:
    """What each format makes of the same tokens, against the first."""
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
