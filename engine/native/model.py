"""A model in int8 as the native library reads it, and one call that computes a step of it."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.batch import Batch, Int32
from engine.errors import ConfigurationError
from engine.models.config import ModelConfig
from engine.models.products import QuantisedEmbedding, QuantisedMatrix
from engine.models.rope import RopeTable
from engine.models.weights import LayerWeights, Weights
from engine.native import library as native
from engine.native.memory import Arena

MOST_GROUP = 16
"""Query heads that may share a KV head."""

HEAD_DIMS = range(16, 257, 16)


def suits(config: ModelConfig) -> str | None:
    """Why the library cannot compute this model; None if it can."""
    if config.head_dim not in HEAD_DIMS:
        return f"heads of {config.head_dim} are not a multiple of 16 up to 256"
    if config.heads // config.kv_heads > MOST_GROUP:
        return f"{config.heads // config.kv_heads} query heads share a KV head, {MOST_GROUP} may"
    if any(width % 4 for width in (config.hidden, config.ffn, config.heads * config.head_dim)):
        return "a width is not a multiple of 4"
    return None


class NativeModel:
    """The weights, packed; owns the memory that the library reads.

    isa: an instruction set by name ("amx", "avx512", "avx2", "portable"), or None for the best
    one here. Raises ConfigurationError if it cannot be used here.
    """

    def __init__(
        self,
        library: ctypes.CDLL,
        weights: Weights,
        config: ModelConfig,
        rope: RopeTable,
        *,
        isa: str | None = None,
    ) -> None:
        self._library = library
        self._engine = library.octavo_engine_new(isa.encode() if isa else None)
        if not self._engine:
            raise ConfigurationError(f"the instruction set {isa} cannot be used here")
        self._vocab = config.vocab
        self._kept: list[Tensor] = []
        self._arena = Arena()
        self._layers = (native.Layer * config.layers)()
        for index, layer in enumerate(weights.layers):
            self._layers[index] = self._layer(layer, config, config.layer_windows[index])
        head = self._matrix(_quantised(weights.head))
        assert isinstance(weights.embedding, QuantisedEmbedding)
        embedded = weights.embedding.matrix
        self._struct = native.Model(
            layers=self._layers,
            embedding=head if embedded is weights.head else self._matrix(embedded),
            embedding_unsmooth=self._keep(_smooth(embedded)),
            head=head,
            final_norm=self._keep(weights.norm * _smooth(_quantised(weights.head))),
            cos=self._keep(rope.cos),
            sin=self._keep(rope.sin),
            norm_eps=config.norm_eps,
            layer_count=config.layers,
            hidden=config.hidden,
            heads=config.heads,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            ffn=_padded(config.ffn),
            vocab=config.vocab,
        )

    @property
    def isa(self) -> str:
        """The instruction set in use."""
        name: bytes = self._library.octavo_engine_name(self._engine)
        return name.decode()

    def step(
        self, batch: Batch, token_ids: Int32, cache: native.Cache, threads: int
    ) -> tuple[Tensor, npt.NDArray[np.int32]]:
        """Compute a batch whose tokens are `token_ids`, all known.

        Returns the logits [len(batch.logit_rows), vocab] and the index of each row's largest.
        """
        count = len(batch.logit_rows)
        logits = torch.empty(count, self._vocab)
        greedy = np.empty(count, np.int32)
        step = _step(batch, token_ids, threads)
        step.logits, step.greedy = logits.data_ptr(), greedy.ctypes.data
        if self._library.octavo_step(self._engine, self._struct, cache, step):
            raise MemoryError("no memory for the step")
        return logits, greedy

    def attention(
        self, batch: Batch, queries: Tensor, cache: native.Cache, layer: int = 0, threads: int = 1
    ) -> Tensor:
        """Attention alone, of queries [tokens, heads, head_dim] over KV that is in the cache."""
        queries = queries.contiguous()
        out = torch.empty_like(queries)
        step = _step(batch, batch.token_ids, threads)
        arguments = (layer, queries.data_ptr(), out.data_ptr())
        self._library.octavo_attention(self._engine, self._struct, cache, step, *arguments)
        return out

    def draw(
        self,
        logits: Tensor,
        at: Sequence[int],
        controls: ctypes.Array[native.Controls],
        threads: int,
    ) -> npt.NDArray[np.int32]:
        """A token for each of the rows `at` of float32 logits [rows, vocab]."""
        tokens, work = _draw(logits, at, controls, threads)
        if self._library.octavo_draw(self._engine, work):
            raise MemoryError("no memory to draw in")
        return tokens

    def best_allowed(
        self,
        logits: Tensor,
        at: Sequence[int],
        controls: ctypes.Array[native.Controls],
        threads: int,
    ) -> npt.NDArray[np.int32]:
        """The best token of each of the rows `at` that its mask allows; -1 if there is none."""
        tokens, work = _draw(logits, at, controls, threads)
        self._library.octavo_best(self._engine, work)
        return tokens

    def times(self) -> native.Times:
        """Where the last step's time went."""
        times = native.Times()
        self._library.octavo_times(self._engine, times)
        return times

    def close(self) -> None:
        """Give the memory back."""
        if self._engine:
            self._library.octavo_engine_free(self._engine)
            self._engine = None
            self._kept.clear()
            self._arena = Arena()

    def _layer(self, layer: LayerWeights, config: ModelConfig, window: int | None) -> native.Layer:
        qkv, out = _quantised(layer.qkv), _quantised(layer.attn_out)
        gate_up, down = _quantised(layer.gate_up), _quantised(layer.down)
        return native.Layer(
            attn_norm=self._keep(layer.attn_norm * _smooth(qkv)),
            out_smooth=self._keep(_smooth(out)),
            ffn_norm=self._keep(layer.ffn_norm * _smooth(gate_up)),
            down_smooth=self._keep(_extended(_smooth(down), _padded(config.ffn))),
            q_norm=self._keep(layer.q_norm),
            k_norm=self._keep(layer.k_norm),
            qkv=self._matrix(qkv, layer.qkv_bias),
            out=self._matrix(out, layer.attn_out_bias),
            gate_up=self._matrix(_interleaved(gate_up)),
            down=self._matrix(_wide(down, _padded(config.ffn))),
            window=window or 0,
        )

    def _matrix(self, matrix: QuantisedMatrix, bias: Tensor | None = None) -> native.Matrix:
        packed = self._arena.keep(native.pack(matrix.numbers))
        outputs = packed.shape[0] * native.LANES
        self._kept.append(packed)
        return native.Matrix(
            weights=packed.data_ptr(),
            scales=self._keep(_extended(matrix.scales, outputs)),
            bias=self._keep(None if bias is None else _extended(bias, outputs)),
            outputs=outputs,
            inputs=packed.shape[1] * 4,
        )

    def _keep(self, tensor: Tensor | None) -> int | None:
        """The address of a tensor that stays as long as the model does."""
        if tensor is None:
            return None
        self._kept.append(tensor.contiguous())
        return self._kept[-1].data_ptr()


def _step(batch: Batch, token_ids: Int32, threads: int) -> native.Step:
    """The arrays of a batch; the caller keeps them alive."""
    arrays = (
        token_ids,
        batch.positions,
        batch.slots,
        batch.qo_indptr,
        batch.kv_indptr,
        batch.kv_indices,
        batch.last_page_len,
        batch.logit_rows,
    )
    addresses = (array.ctypes.data for array in arrays)
    sizes = batch.tokens, len(batch.qo_indptr) - 1, len(batch.logit_rows)
    return native.Step(*addresses, None, None, *sizes, threads)


def _quantised(matrix: object) -> QuantisedMatrix:
    assert isinstance(matrix, QuantisedMatrix)
    return matrix


def _smooth(matrix: QuantisedMatrix) -> Tensor:
    return torch.ones(matrix.numbers.shape[1]) if matrix.smooth is None else matrix.smooth


def _padded(width: int) -> int:
    return -(-width // native.LANES) * native.LANES


def _extended(values: Tensor, length: int) -> Tensor:
    """The values, then zeros."""
    extended = torch.zeros(length, dtype=values.dtype)
    extended[: len(values)] = values
    return extended


def _interleaved(gate_up: QuantisedMatrix) -> QuantisedMatrix:
    """Panels of sixteen outputs, of gate and of up in turns, each padded with zeros."""

    def weave(both: Tensor) -> Tensor:
        half = len(both) // 2
        padded = torch.zeros(2, _padded(half), *both.shape[1:], dtype=both.dtype)
        padded[:, :half] = both.view(2, half, *both.shape[1:])
        panels = padded.view(2, -1, native.LANES, *both.shape[1:])
        return panels.transpose(0, 1).flatten(0, 2)

    return QuantisedMatrix(weave(gate_up.numbers), weave(gate_up.scales))


def _wide(down: QuantisedMatrix, inputs: int) -> QuantisedMatrix:
    """Columns of zeros for the padding of what gate and up give."""
    numbers = torch.zeros(len(down.numbers), inputs, dtype=torch.int8)
    numbers[:, : down.numbers.shape[1]] = down.numbers
    return QuantisedMatrix(numbers, down.scales)


def _draw(
    logits: Tensor, at: Sequence[int], controls: ctypes.Array[native.Controls], threads: int
) -> tuple[npt.NDArray[np.int32], native.Draw]:
    """Where the tokens of some rows of logits will be, and the work that finds them.

    The work keeps alive what it points to.
    """
    step = 4 * logits.stride(0)
    addresses = np.asarray(at, np.uint64) * np.uint64(step) + np.uint64(logits.data_ptr())
    tokens = np.empty(len(at), np.int32)
    work = native.Draw(
        logits=addresses.ctypes.data,
        controls=controls,
        tokens=tokens.ctypes.data,
        rows=len(at),
        vocab=logits.shape[1],
        threads=threads,
    )
    work.kept = logits, addresses, tokens
    return tokens, work
