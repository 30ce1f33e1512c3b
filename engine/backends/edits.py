"""What controls do to logits before temperature: worked out on the host, applied on any device.

    mask, allowed_ids         words         one bit a token, set if it may be sampled
    bad_words, min_tokens     forbidden     become -inf
    logit_bias                biased        are added to
    repetition_penalty        repeated      are divided, or multiplied below zero
    frequency, presence       generated     are taken from

Except for the words, edits are lists of cells: the cell of a token in logits [rows, vocab] is
row * vocab + token. A token beyond the vocabulary would be a cell of another row, or of none, which
a GPU does not survive: such a token is an IndexError here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.controls import RowControls, SampleRow

Int64: TypeAlias = npt.NDArray[np.int64]
Float64: TypeAlias = npt.NDArray[np.float64]
Array: TypeAlias = npt.NDArray[Any]
A = TypeVar("A", Array, Tensor)

NO_CELLS: Final = np.empty(0, dtype=np.int64)
NO_NUMBERS: Final = np.empty(0, dtype=np.float64)


class Edits(NamedTuple, Generic[A]):
    """The cells that edits change, and by how much: arrays on the host, or tensors on a device.

    No cell is twice in one of the lists, except among the forbidden.

    forbidden, biased, repeated, generated: cells, int64. biases, penalties, takes: a float64 for
    each of the biased, repeated and generated.
    """

    forbidden: A
    biased: A
    biases: A
    repeated: A
    penalties: A
    generated: A
    takes: A


def is_greedy(controls: RowControls) -> bool:
    """Whether the best token is taken, and none drawn."""
    return controls.temperature == 0 or controls.top_k == 1


def edits_logits(row: SampleRow) -> bool:
    """Whether anything changes the row's logits before temperature."""
    return row.mask is not None or adjusts(row.controls)


def adjusts(controls: RowControls) -> bool:
    """Whether anything but a mask changes logits before temperature."""
    return bool(
        controls.logit_bias
        or controls.allowed_ids is not None
        or controls.bad_words
        or controls.min_tokens
        or controls.repetition_penalty != 1
        or controls.frequency_penalty != 0
        or controls.presence_penalty != 0
    )


def edits_of(rows: Sequence[SampleRow], vocab: int) -> Edits[Array]:
    """What is done to the logits [rows, vocab] of these rows, but for their words.

    Raises IndexError for a token that is not in the vocabulary.
    """
    return Edits(
        _forbidden_cells(rows, vocab),
        *_biased_cells(rows, vocab),
        *_repeated_cells(rows, vocab),
        *_generated_cells(rows, vocab),
    )


def apply(logits: Tensor, edits: Edits[Tensor]) -> None:
    """Do these edits, on the device of the logits [rows, vocab], in place. Contiguous logits."""
    flat = logits.view(-1)
    if len(edits.forbidden):
        flat.index_fill_(0, edits.forbidden, -math.inf)
    if len(edits.biased):
        flat.index_add_(0, edits.biased, edits.biases.to(flat.dtype))
    if len(edits.repeated):
        penalties, before = edits.penalties.to(flat.dtype), flat.index_select(0, edits.repeated)
        after = torch.where(before > 0, before / penalties, before * penalties)
        flat.index_copy_(0, edits.repeated, after)
    if len(edits.generated):
        flat.index_add_(0, edits.generated, edits.takes.to(flat.dtype), alpha=-1)


# ── words ─────────────────────────────────────────────────────────────────────────────────────


def limited(rows: Sequence[SampleRow]) -> list[int]:
    """The rows that a mask or allowed_ids keep to some tokens."""
    return [
        i
        for i, row in enumerate(rows)
        if row.mask is not None or row.controls.allowed_ids is not None
    ]


def allowed_words(rows: Sequence[SampleRow], vocab: int) -> npt.NDArray[np.uint32]:
    """The tokens that mask and allowed_ids of a row let through, packed as in a `Mask`.

    [rows, ceil(vocab / 32)], little endian; bits beyond the vocabulary mean nothing.
    """
    words = np.full((len(rows), -(-vocab // 32)), 0xFFFF_FFFF, dtype="<u4")
    for packed, row in zip(words, rows, strict=True):
        if row.mask is not None:
            known = min(len(row.mask), len(packed))
            packed[:known] = row.mask[:known]
            packed[known:] = 0
        if row.controls.allowed_ids is not None:
            packed &= _listed(within(row.controls.allowed_ids, vocab), len(packed))
    return words


def _listed(tokens: Int64, count: int) -> npt.NDArray[np.uint32]:
    """`count` words with the bits of these tokens set."""
    bits = np.zeros(32 * count, dtype=np.bool_)
    bits[tokens] = True
    return np.packbits(bits, bitorder="little").view("<u4")


# ── cells ─────────────────────────────────────────────────────────────────────────────────────


def cells(pairs: Iterable[tuple[int, int]], vocab: int) -> Int64:
    """The cells of (row, token) pairs. Raises IndexError for a token not in the vocabulary."""
    listed = list(pairs)
    if not listed:
        return NO_CELLS
    both = np.array(listed, dtype=np.int64)
    found: Int64 = both[:, 0] * vocab + within(both[:, 1], vocab)
    return found


def within(tokens: Iterable[int] | Int64, vocab: int) -> Int64:
    """The tokens as an array. Raises IndexError if one is not in the vocabulary."""
    ids = tokens if isinstance(tokens, np.ndarray) else np.array(list(tokens), dtype=np.int64)
    if len(ids) and (ids.min() < 0 or ids.max() >= vocab):
        raise IndexError(f"a token id is not within the vocabulary of {vocab}")
    return ids


def _forbidden_cells(rows: Sequence[SampleRow], vocab: int) -> Int64:
    return cells(((i, token) for i, row in enumerate(rows) for token in _forbidden(row)), vocab)


def _forbidden(row: SampleRow) -> list[int]:
    """Tokens that would complete a bad word or end the sequence too early."""
    controls, tokens = row.controls, row.tokens
    forbidden = [
        word[-1]
        for word in controls.bad_words
        if list(tokens[len(tokens) - len(word) + 1 :]) == list(word[:-1])
    ]
    if len(tokens) - row.prompt_length < controls.min_tokens:
        forbidden += controls.stop_ids | controls.eos_ids
    return forbidden


def _biased_cells(rows: Sequence[SampleRow], vocab: int) -> tuple[Int64, Float64]:
    biased = [(i, row.controls.logit_bias) for i, row in enumerate(rows) if row.controls.logit_bias]
    if not biased:
        return NO_CELLS, NO_NUMBERS
    biases = [bias for _, by in biased for bias in by.values()]
    pairs = ((i, token) for i, by in biased for token in by)
    return cells(pairs, vocab), np.array(biases, dtype=np.float64)


def _repeated_cells(rows: Sequence[SampleRow], vocab: int) -> tuple[Int64, Float64]:
    """repetition_penalty: each token of prompt or output becomes less likely, once."""
    by = [row.controls.repetition_penalty for row in rows]
    histories = {i: rows[i].tokens for i, penalty in enumerate(by) if penalty != 1}
    if not histories:
        return NO_CELLS, NO_NUMBERS
    at, tokens, _ = _occurrences(histories)
    return at * vocab + within(tokens, vocab), np.array(by, dtype=np.float64)[at]


def _generated_cells(rows: Sequence[SampleRow], vocab: int) -> tuple[Int64, Float64]:
    """frequency_penalty each time, and presence_penalty once, for each generated token."""
    by = [(row.controls.frequency_penalty, row.controls.presence_penalty) for row in rows]
    histories = {
        i: rows[i].tokens[rows[i].prompt_length :]
        for i, (each, once) in enumerate(by)
        if each or once
    }
    if not histories:
        return NO_CELLS, NO_NUMBERS
    at, tokens, counts = _occurrences(histories)
    each, once = np.array(by, dtype=np.float64)[at].T
    return at * vocab + within(tokens, vocab), each * counts + once


def _occurrences(histories: Mapping[int, Sequence[int]]) -> tuple[Int64, Int64, Int64]:
    """Each different (row, token) of the rows' histories, and how often it is there."""
    # The row above, the token below: no id, however wrong, reaches into another row.
    keys = [
        np.asarray(tokens, dtype=np.int64) & 0xFFFF_FFFF | i << 32
        for i, tokens in histories.items()
    ]
    found, counts = np.unique(np.concatenate(keys), return_counts=True)
    return found >> 32, found & 0xFFFF_FFFF, counts
