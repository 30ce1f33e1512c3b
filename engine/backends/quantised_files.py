"""int8 weights of a model: made once, from its file and a short text, and kept on disk."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
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

VERSION = 1
"""Changes when the same model and text would give other weights."""

SEVEN_BITS = 63
"""The largest number of a weight where products of pairs saturate at 16 bits: 2 * 255 * 63 fits."""

CALIBRATION_TOKENS = 1024
"""Tokens of the text at most; a step of this many computes it."""

EXACT_SHAPES = ((1, 576, 64), (5, 1536, 32), (33, 64, 576))
"""Rows, inputs and outputs of the products that are looked at."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """What int8 weights are made with.

    tokens: a short text, as the model's token ids; without any, weights are not smoothed. folder:
    where the result is kept; None to make it anew each time.
    """

    tokens: Sequence[int] = ()
    folder: Path | None = None


def quantised_weights(
    path: str | PathLike[str], config: ModelConfig, calibration: Calibration, *, native: bool
) -> Weights:
    """The weights of the model at `path` in int8.

    native: products are not torch's. Raises ModelError for a model that cannot be served.
    """
    most = INT8_MAX
    if not native and not torch_is_exact():
        most = SEVEN_BITS
        log.warning("int8 products of torch saturate on this processor: weights keep 7 bits")
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
    weights = _made(path, config, calibration.tokens, most)
    try:
        quantisation.save(weights, kept)
    except OSError as error:
        log.warning("int8 weights cannot be kept in %s: %s", calibration.folder, error)
    return weights


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
    weights = quantisation.watched(load_weights(path, config))
    text = tokens[: min(CALIBRATION_TOKENS, config.context_length)]
    if text:
        _run(weights, config, text)
    return quantisation.quantised(weights, most)


def _run(weights: Weights, config: ModelConfig, tokens: Sequence[int]) -> None:
    """Compute a text, for what the weights see."""
    count, blocks = len(tokens), blocks_for(len(tokens))
    positions = np.arange(count, dtype=np.int32)
    token_ids = np.array(tokens, np.int32)
    batch = Batch(
        step=0,
        rows=Rows([(0, 0)], [0], [count], [True]),
        token_ids=token_ids,
        positions=positions,
        slots=positions,
        qo_indptr=np.array([0, count], np.int32),
        kv_indptr=np.array([0, blocks], np.int32),
        kv_indices=np.arange(blocks, dtype=np.int32),
        last_page_len=np.array([(count - 1) % BLOCK + 1], np.int32),
        sample_rows=np.array([0], np.int32),
        logit_rows=positions[-1:],
    )
    TorchRunner(weights, config, blocks).run(batch, token_ids)


def _digest(path: Path, tokens: Sequence[int], most: int) -> str:
    """A name for the result: of the model's files, the text, and how it is made."""
    digest = hashlib.sha256(f"{VERSION} {most} {list(tokens)}".encode())
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    for file in files:
        with file.open("rb") as opened:
            digest.update(hashlib.file_digest(opened, "sha256").digest())
    return digest.hexdigest()[:16]
