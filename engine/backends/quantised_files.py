"""int8 weights of a model: made once, from its file and a short text, and kept on disk."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from os import PathLike
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError

from engine.backends.runners import TorchRunner
from engine.batch import BLOCK, Batch, Rows
from engine.blocks import blocks_for
from engine.models import quantisation
from engine.models.config import ModelConfig
from engine.models.files import load_weights
from engine.models.products import INT8_MAX
from engine.models.weights import Weights

log = logging.getLogger("octavo.engine")

VERSION = 2
"""Changes when the same model and text would give other weights."""

MOST = {8: INT8_MAX, 7: 63}
"""The largest number of a weight, by its bits: 2 * 255 * 63 fits 16 bits, where pairs of products
saturate."""

SATURATES = (
    "int8 products of torch saturate on this processor: weights keep 7 bits"
    " (perplexity of the default model 2 to 3% over float32 instead of 0.5%)"
)

CALIBRATION_TOKENS = 3072
"""Tokens of the text at most; one step computes them."""

SEQUENCE = 512
"""Tokens of the sequences that the text is cut into. A first token is unlike all others, and the
attention of short ones takes little memory."""

EXACT_SHAPES = ((1, 576, 64), (5, 1536, 32), (33, 64, 576))
"""Rows, inputs and outputs of the products that are looked at."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """What int8 weights are made with.

    tokens: a short text, as the model's token ids; without any, weights are not smoothed. folder:
    where the result is kept; None to make it anew each time. bits: what weights keep, 8 or 7; None
    for as many as products are exact with.
    """

    tokens: Sequence[int] = ()
    folder: Path | None = None
    bits: int | None = None


def quantised_weights(
    path: str | PathLike[str], config: ModelConfig, calibration: Calibration, *, native: bool
) -> Weights:
    """The weights of the model at `path` in int8.

    native: products are not torch's. Raises ModelError for a model that cannot be served.
    """
    bits = calibration.bits
    if bits is None:
        bits = exact_bits(native=native)
        if bits < 8:
            log.warning(SATURATES)
    most = MOST[bits]
    if calibration.folder is None:
        return _made(path, config, calibration.tokens, most)
    name = f"{Path(path).stem}-{_digest(Path(path), calibration.tokens, most)}.int8.safetensors"
    kept = calibration.folder / name
    try:
        return quantisation.load(kept, config)
    except FileNotFoundError:
        pass
    except (OSError, SafetensorError, KeyError) as error:
        log.warning("%s is damaged (%s) and is made again", kept, error)
    log.info("making int8 weights of %s, once: some tens of seconds", path)
    weights = _made(path, config, calibration.tokens, most)
    try:
        quantisation.save(weights, kept)
    except OSError as error:
        log.warning("int8 weights cannot be kept in %s: %s", calibration.folder, error)
    return weights


def exact_bits(*, native: bool) -> int:
    """How many bits weights may have for products to be exact. native: they are not torch's."""
    return 8 if native or torch_is_exact() else 7


def torch_is_exact() -> bool:
    """Whether torch's int8 products are what integer arithmetic says.

    Without VNNI oneDNN adds pairs of products in 16 bits, which saturate.
    """
    random = np.random.default_rng(0)
    for rows, inputs, outputs in EXACT_SHAPES:
        for low in (-INT8_MAX, INT8_MAX):
            x = random.integers(low, INT8_MAX, (rows, inputs), dtype=np.int8, endpoint=True)
            w = random.integers(low, INT8_MAX, (outputs, inputs), dtype=np.int8, endpoint=True)
            exact = x.astype(np.int64) @ w.astype(np.int64).T
            found = torch._int_mm(torch.from_numpy(x), torch.from_numpy(w).t())
            if not np.array_equal(found.numpy(), exact):
                return False
    return True


def _made(
    path: str | PathLike[str], config: ModelConfig, tokens: Sequence[int], most: int
) -> Weights:
    weights = quantisation.watched(partial(load_weights, path, config), most)
    if tokens:
        _run(weights, config, tokens[:CALIBRATION_TOKENS])
    return quantisation.quantised(weights)


def _run(weights: Weights, config: ModelConfig, tokens: Sequence[int]) -> None:
    """Compute a text as sequences side by side, for what the weights see."""
    longest = min(SEQUENCE, config.context_length)
    starts = np.arange(0, len(tokens), longest)
    lengths = np.minimum(longest, len(tokens) - starts)
    blocks = [blocks_for(int(length)) for length in lengths]
    firsts = np.cumsum([0, *blocks])
    positions = np.concatenate([np.arange(length) for length in lengths])
    slots = np.repeat(firsts[:-1] * BLOCK, lengths) + positions
    token_ids = np.array(tokens, np.int32)
    batch = Batch(
        step=0,
        rows=Rows(
            keys=[(i, i) for i in range(len(lengths))],
            starts=[0] * len(lengths),
            counts=lengths.tolist(),
            samples=[True] * len(lengths),
        ),
        token_ids=token_ids,
        positions=positions.astype(np.int32),
        slots=slots.astype(np.int32),
        qo_indptr=np.append(starts, len(tokens)).astype(np.int32),
        kv_indptr=firsts.astype(np.int32),
        kv_indices=np.arange(firsts[-1], dtype=np.int32),
        last_page_len=((lengths - 1) % BLOCK + 1).astype(np.int32),
        sample_rows=np.repeat(np.arange(len(lengths)), lengths).astype(np.int32),
        logit_rows=np.arange(len(tokens), dtype=np.int32),
    )
    TorchRunner(weights, config, int(firsts[-1])).run(batch, token_ids)


def _digest(path: Path, tokens: Sequence[int], most: int) -> str:
    """A name for the result: of the model's files, the text, and how it is made."""
    digest = hashlib.sha256(f"{VERSION} {most} {list(tokens)}".encode())
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    for file in files:
        with file.open("rb") as opened:
            digest.update(hashlib.file_digest(opened, "sha256").digest())
    return digest.hexdigest()[:16]
