"""FlashInfer's wrappers as they are called here: by name, in what its versions have in common.

0.6.18 and 0.7.4 agree in all parameters used (https://docs.flashinfer.ai/api/attention.html). Both
phases run the kernels of "fa2": with tensor cores a decode is a prefill of one query, so that one
module is compiled for a type and head size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from engine.backends.cuda.device import Device, Event
from engine.backends.cuda.split import PagedRows
from engine.batch import BLOCK

WORKSPACE_BYTES: Final = 128 << 20
"""What FlashInfer recommends for its workspace of floats."""

MULTIPROCESSORS: Final = 132
"""Of an H200: for devices that do not say."""

TILES: Final = 16, 64, 128
"""Queries of a tile in fa2, counted once for each head of a group: the first that holds a row's, or
the last."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What every plan is told. heads: of queries, whose type is `dtype`; a multiple of kv_heads.

    kv_dtype: of the pools.
    """

    heads: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype
    kv_dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class Scales:
    """What elements of an fp8 cache are multiplied by."""

    keys: float = 1.0
    values: float = 1.0


@dataclass(frozen=True, slots=True)
class Tables:
    """The arrays of some rows where FlashInfer reads them: the planner on the host, hence pinned,
    kernels the blocks on the device."""

    qo_indptr: Tensor
    kv_indptr: Tensor
    kv_indices: Tensor
    last_page_len: Tensor

    @classmethod
    def of(cls, rows: PagedRows, device: Device) -> Tables:
        return cls(
            qo_indptr=device.pinned(rows.qo_indptr),
            kv_indptr=device.pinned(rows.kv_indptr),
            kv_indices=device.upload(rows.kv_indices),
            last_page_len=device.pinned(rows.last_page_len),
        )


class Buffers:
    """Where graphs read their block tables: all of them in the same place, one after the other."""

    def __init__(self, device: torch.device, most_rows: int) -> None:
        self._indptr = torch.zeros(most_rows + 1, dtype=torch.int32, device=device)
        self._last_page_len = torch.ones(most_rows, dtype=torch.int32, device=device)
        self._indices = torch.zeros(0, dtype=torch.int32, device=device)

    def of(self, bucket: int, most_blocks: int) -> dict[str, Tensor]:
        """Arguments for a wrapper of so many rows. A graph with more blocks than those before it
        begins a new array, which those behind it share."""
        if most_blocks > len(self._indices):
            self._indices = self._indices.new_zeros(most_blocks)
        return {
            "paged_kv_indptr_buffer": self._indptr[: bucket + 1],
            "paged_kv_indices_buffer": self._indices[:most_blocks],
            "paged_kv_last_page_len_buffer": self._last_page_len[:bucket],
        }


class Wrapper:
    """A wrapper of FlashInfer, and the event that says when it may be planned again.

    Planning writes a schedule into pinned memory and begins to copy it to the device. Doing so once
    more before that copy has run changes the schedule of a step in flight.

    tables: names the arrays as `plan` wants them. fixed, scales: further arguments of `plan` and of
    `run`, always the same.
    """

    def __init__(
        self,
        wrapper: Any,
        event: Event,
        tables: Callable[[Tables], dict[str, Tensor]],
        fixed: Mapping[str, Any],
        scales: Mapping[str, float],
    ) -> None:
        self._wrapper, self._event = wrapper, event
        self._tables, self._fixed, self._scales = tables, fixed, scales

    def plan(self, tables: Tables) -> None:
        self._event.synchronize()
        self._wrapper.plan(**self._tables(tables), **self._fixed)
        self._event.record()

    def run(self, queries: Tensor, kv: tuple[Tensor, Tensor], out: Tensor) -> None:
        """Attention of queries [tokens, heads, head_dim] over one layer, into `out`."""
        self._wrapper.run(q=queries, paged_kv_cache=kv, out=out, **self._scales)


class WrapperMaker:
    """Makes wrappers that share one workspace, since the stream runs one kernel after the other.

    flashinfer: the module. workspace_bytes: its size.
    """

    def __init__(
        self,
        flashinfer: Any,
        device: Device,
        shape: Shape,
        scales: Scales | None,
        workspace_bytes: int,
    ) -> None:
        self._flashinfer, self._device, self._shape = flashinfer, device, shape
        self._workspace = torch.zeros(
            workspace_bytes, dtype=torch.uint8, device=device.torch_device
        )
        self._scales = {} if scales is None else {"k_scale": scales.keys, "v_scale": scales.values}

    def decodes(self, window: int | None, buffers: Mapping[str, Tensor] | None = None) -> Wrapper:
        """For rows of one token. buffers: of a graph that captures it."""
        wrapper = self._flashinfer.BatchDecodeWithPagedKVCacheWrapper(
            float_workspace_buffer=self._workspace,
            kv_layout="NHD",
            use_tensor_cores=True,
            backend="fa2",
            use_cuda_graph=buffers is not None,
            **(buffers or {}),
        )
        fixed = {"head_dim": self._shape.head_dim, **self._fixed(window)}
        return Wrapper(wrapper, self._device.event(), _decode_tables, fixed, self._scales)

    def chunks(self, window: int | None) -> Wrapper:
        """For rows of any number of tokens."""
        wrapper = self._flashinfer.BatchPrefillWithPagedKVCacheWrapper(
            float_workspace_buffer=self._workspace, kv_layout="NHD", backend="fa2"
        )
        fixed = {"head_dim_qk": self._shape.head_dim, "causal": True, **self._fixed(window)}
        return Wrapper(wrapper, self._device.event(), _prefill_tables, fixed, self._scales)

    def _fixed(self, window: int | None) -> dict[str, Any]:
        """FlashInfer's window counts what is left of a query; -1 is all of it."""
        return {
            "num_qo_heads": self._shape.heads,
            "num_kv_heads": self._shape.kv_heads,
            "page_size": BLOCK,
            "window_left": -1 if window is None else window - 1,
            "q_data_type": self._shape.dtype,
            "kv_data_type": self._shape.kv_dtype,
        }


def multiprocessors(device: torch.device) -> int:
    """How many the device has."""
    if device.type != "cuda":
        return MULTIPROCESSORS
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def bytes_needed(shape: Shape, most_rows: int, processors: int) -> int:
    """Bytes of the workspace that a plan may need, where graphs have no more than `most_rows`.

    Where KV is split, a tile keeps a float32 vector and its weight for each query and head: 0.6.18
    for all queries of the tile, whatever the group. There are two tiles a multiprocessor at most,
    shared by the KV heads; in a graph as many as rows of any lengths could need, if those are more
    (`PrefillPlan` in FlashInfer's include/flashinfer/attention/scheduler.cuh).
    """
    tiles = max(1, 2 * processors // shape.kv_heads)
    group = shape.heads // shape.kv_heads
    decode_tile = next((size for size in TILES if group <= size), TILES[-1])
    of_graph = max(tiles, -(-most_rows * group // decode_tile) + most_rows - 1)
    queries = max(tiles * TILES[-1], of_graph * decode_tile)
    alignment = 32
    return shape.heads * queries * (shape.head_dim + 1) * 4 + alignment


def _decode_tables(tables: Tables) -> dict[str, Tensor]:
    return {
        "indptr": tables.kv_indptr,
        "indices": tables.kv_indices,
        "last_page_len": tables.last_page_len,
    }


def _prefill_tables(tables: Tables) -> dict[str, Tensor]:
    return {
        "qo_indptr": tables.qo_indptr,
        "paged_kv_indptr": tables.kv_indptr,
        "paged_kv_indices": tables.kv_indices,
        "paged_kv_last_page_len": tables.last_page_len,
    }
