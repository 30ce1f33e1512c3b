"""FlashInfer's wrappers on the CPU: float64 attention over the very arrays that `plan` was given.

What the real ones read, and when, is kept:

    the planner, on the host, at plan          offsets and lengths, from which the schedule is made
    kernels, on the device, at run or replay   the block tables, and as much of them as the schedule
                                               covers: of a graph, in the buffers it captured

So arrays that change between the two, a plan that was forgotten, or one made too late, give wrong
numbers. What FlashInfer refuses is refused, and so is what it does not check and computes wrongly.
Two things are easier here: queries and pools may be float32, and no workspace is written to.
"""

from __future__ import annotations

import functools
import math
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from support.cpu_device import CPUDevice

MULTIPROCESSORS = 132
SPLITS_OF = 128
"""Tokens of KV in a part, at least, where KV is split."""

Dtype = str | torch.dtype


class Refused(AssertionError):
    """FlashInfer would not take this, crash, or compute something else."""


@dataclass(frozen=True)
class Call:
    """A call as it was made. kind: the class; method: "__init__", "plan" or "run"."""

    kind: str
    method: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass
class FlashInferStub:
    """The module. device: where its wrappers run. calls: all that were made, in order."""

    device: CPUDevice
    calls: list[Call] = field(default_factory=list)

    def __post_init__(self) -> None:
        here = {"device": self.device, "calls": self.calls}
        for kind in BatchDecodeWithPagedKVCacheWrapper, BatchPrefillWithPagedKVCacheWrapper:
            setattr(self, kind.__name__, type(kind.__name__, (kind,), here))


def flashinfer_stub(device: CPUDevice) -> Any:
    """The module, as something that has any attribute."""
    return FlashInferStub(device)


def _recorded(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def record(self: _Wrapper, *args: Any, **kwargs: Any) -> Any:
        self.calls.append(Call(type(self).__name__, method.__name__, args, kwargs))
        return method(self, *args, **kwargs)

    return record


@dataclass(frozen=True)
class Plan:
    """What the planner made of the arrays it read on the host, and the rest of its arguments."""

    queries: np.ndarray
    kv_lens: np.ndarray
    heads: int
    kv_heads: int
    head_dim: int
    page_size: int
    window_left: int
    dtype: torch.dtype
    kv_dtype: torch.dtype

    def float_bytes(self, graph: bool) -> int:
        """Of the workspace that parts of a split KV take: `PrefillPlan` of 0.6.18."""
        group = self.heads // self.kv_heads
        packed = self.queries * group
        rows = len(packed)
        tile = _tile(group if graph else int(packed.sum()) // rows)
        blocks = -(-self.kv_lens // self.page_size)
        if self.window_left >= 0:
            blocks = np.minimum(blocks, -(-(self.window_left + tile) // self.page_size))
        most = 2 * MULTIPROCESSORS // self.kv_heads
        tiles = -(-packed // tile)
        longest = int(blocks.max())
        sizes = range(SPLITS_OF // self.page_size, longest)
        part = sizes.start + bisect_left(
            sizes, True, key=lambda size: int((tiles * -(-blocks // size)).sum()) <= most
        )
        if not graph and part >= longest:
            return 0
        if graph:  # as if any row might have any of the queries
            parts = max(most, -(-int(packed.sum()) // tile) + rows - 1)
        else:
            parts = int((tiles * -(-blocks // part)).sum())
        return self.heads * parts * tile * (self.head_dim + 1) * 4


class _Wrapper:
    """What both wrappers do."""

    device: ClassVar[CPUDevice]
    calls: ClassVar[list[Call]]

    def _open(self, workspace: Tensor, kv_layout: str, backend: str) -> None:
        _require(kv_layout == "NHD", "pages are [pages, page_size, kv_heads, head_dim]")
        _require(backend == "fa2", "only the kernels of fa2 are compiled")
        _require(workspace.dtype == torch.uint8, "the workspace is bytes")
        _require(workspace.data_ptr() % 16 == 0, "the workspace is aligned to 16 bytes")
        _require(not workspace[:4096].any(), "the workspace is zeroed before its first use")
        self._workspace = workspace
        self._plan: Plan | None = None
        self._planned_at = 0
        self._buffers: tuple[Tensor, Tensor, Tensor] | None = None

    def _planned(self, plan: Plan, indptr: Tensor, indices: Tensor, last_page_len: Tensor) -> None:
        """Take over a plan; the tables are read where they are then."""
        need, there = plan.float_bytes(graph=self._buffers is not None), self._workspace.numel()
        _require(need <= there, f"Failed to allocate {need} bytes for batch_prefill_tmp_v: {there}")
        _require(
            self._planned_at <= self.device.reached, "planned while the plan before is being copied"
        )
        if self._buffers is None:
            self._tables = indptr, indices, last_page_len
        else:
            self._tables = self._buffers
            rows = len(self._buffers[2])
            _require(len(last_page_len) == rows, f"{len(last_page_len)} rows, of {rows}")
            _require(len(indices) <= len(self._buffers[1]), "more pages than the buffer has")
            self._buffers[0].copy_(indptr)
            self._buffers[1][: len(indices)].copy_(indices)
            self._buffers[2].copy_(last_page_len)
        self.device._note("plan")
        self._planned_at = len(self.device.trace)
        self._plan = plan

    def _tables_on_host(
        self, indptr: Tensor, indices: Tensor, last_page_len: Tensor, page_size: int
    ) -> np.ndarray:
        """KV lengths, from arrays that are what kernels take for granted."""
        for name, array in (("indptr", indptr), ("last_page_len", last_page_len)):
            self._require_array(name, array)
            _require(self.device.is_pinned(array), f"{name} is on the device: the planner waits")
        self._require_array("indices", indices)
        _require(not self.device.is_pinned(indices), "indices are on the host")
        _require(len(last_page_len) > 0, "division by zero: a batch without rows")
        offsets, last = indptr.numpy(), last_page_len.numpy()
        _require(len(offsets) == len(last) + 1, "indptr has an entry a row, and one")
        _require(offsets[0] == 0, "indptr begins at 0")
        _require((np.diff(offsets) > 0).all(), "each row has pages")
        _require(len(indices) == offsets[-1], "indices end where indptr does")
        _require(((last >= 1) & (last <= page_size)).all(), f"1 to {page_size} tokens in a page")
        return (np.diff(offsets) - 1) * page_size + last

    def _require_array(self, name: str, array: Tensor) -> None:
        _require(array.dtype == torch.int32, f"{name} is {array.dtype}, not int32")
        _require(array.dim() == 1 and array.is_contiguous(), f"{name} is not contiguous")

    def _run(
        self,
        q: Tensor,
        cache: tuple[Tensor, Tensor],
        out: Tensor | None,
        k_scale: float | None,
        v_scale: float | None,
    ) -> Tensor:
        plan = self._plan
        _require(plan is not None, "run before plan")
        assert plan is not None
        keys, values = cache
        self._require_tensors(plan, q, keys, values)
        if out is None:
            out = torch.empty_like(q)
        _require(out.shape == q.shape and out.dtype == q.dtype, "out is not like the queries")
        with kernel(q, keys, values, out, *self._tables):
            result = self._attention(plan, q, keys, values, k_scale or 1.0) * (v_scale or 1.0)
            out.copy_(torch.from_numpy(result).to(out.dtype))
        return out

    def _require_tensors(self, plan: Plan, q: Tensor, keys: Tensor, values: Tensor) -> None:
        expected = int(plan.queries.sum()), plan.heads, plan.head_dim
        _require(tuple(q.shape) == expected, f"queries are {tuple(q.shape)}, not {expected}")
        _require(q.dtype == plan.dtype, f"queries are {q.dtype}, planned as {plan.dtype}")
        _require(q.is_contiguous(), "queries are not contiguous")
        page = plan.page_size, plan.kv_heads, plan.head_dim
        for pool in (keys, values):
            _require(
                tuple(pool.shape[1:]) == page, f"pages are {tuple(pool.shape[1:])}, not {page}"
            )
            _require(pool.dtype == plan.kv_dtype, f"KV is {pool.dtype}, not {plan.kv_dtype}")
        _require(keys.stride() == values.stride(), "K and V of other strides: another module")

    def _attention(
        self, plan: Plan, q: Tensor, keys: Tensor, values: Tensor, scale: float
    ) -> np.ndarray:
        offsets, indices, last_page_len = (table.numpy() for table in self._tables)
        ends = np.cumsum(plan.queries)
        out = np.zeros(q.shape)
        for row, end in enumerate(ends):
            pages = indices[offsets[row] : offsets[row + 1]].astype(np.int64)
            kv_len = (len(pages) - 1) * plan.page_size + int(last_page_len[row])
            covered = min(kv_len, int(plan.kv_lens[row]))
            own = slice(end - plan.queries[row], end)
            kv = [gathered(pool, pages, covered) for pool in (keys, values)]
            queries = q[own].double().numpy() * scale
            out[own] = attend(queries, kv[0], kv[1], kv_len, plan.window_left)
        return out


class BatchDecodeWithPagedKVCacheWrapper(_Wrapper):
    """flashinfer.BatchDecodeWithPagedKVCacheWrapper."""

    @_recorded
    def __init__(
        self,
        float_workspace_buffer: Tensor,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        use_tensor_cores: bool = False,
        paged_kv_indptr_buffer: Tensor | None = None,
        paged_kv_indices_buffer: Tensor | None = None,
        paged_kv_last_page_len_buffer: Tensor | None = None,
        backend: str = "auto",
    ) -> None:
        self._open(float_workspace_buffer, kv_layout, backend)
        _require(use_tensor_cores, "decodes without tensor cores are another module")
        buffers = paged_kv_indptr_buffer, paged_kv_indices_buffer, paged_kv_last_page_len_buffer
        if use_cuda_graph:
            indptr, indices, last = buffers
            assert indptr is not None
            assert indices is not None
            assert last is not None
            _require(len(indptr) == len(last) + 1, "indptr has an entry a row, and one")
            self._buffers = indptr, indices, last

    @_recorded
    def plan(
        self,
        indptr: Tensor,
        indices: Tensor,
        last_page_len: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        *,
        window_left: int = -1,
        q_data_type: Dtype | None = "float16",
        kv_data_type: Dtype | None = None,
    ) -> None:
        kv_lens = self._tables_on_host(indptr, indices, last_page_len, page_size)
        dtypes = _dtypes(q_data_type, kv_data_type)
        heads = num_qo_heads, num_kv_heads, head_dim
        plan = Plan(np.ones_like(kv_lens), kv_lens, *heads, page_size, window_left, *dtypes)
        self._planned(plan, indptr, indices, last_page_len)

    @_recorded
    def run(
        self,
        q: Tensor,
        paged_kv_cache: tuple[Tensor, Tensor],
        *args: Any,
        k_scale: float | None = None,
        v_scale: float | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        return self._run(q, paged_kv_cache, out, k_scale, v_scale)


class BatchPrefillWithPagedKVCacheWrapper(_Wrapper):
    """flashinfer.BatchPrefillWithPagedKVCacheWrapper."""

    @_recorded
    def __init__(
        self,
        float_workspace_buffer: Tensor,
        kv_layout: str = "NHD",
        backend: str = "auto",
    ) -> None:
        self._open(float_workspace_buffer, kv_layout, backend)

    @_recorded
    def plan(
        self,
        qo_indptr: Tensor,
        paged_kv_indptr: Tensor,
        paged_kv_indices: Tensor,
        paged_kv_last_page_len: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        causal: bool = False,
        window_left: int = -1,
        q_data_type: Dtype = "float16",
        kv_data_type: Dtype | None = None,
    ) -> None:
        tables = paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len
        kv_lens = self._tables_on_host(*tables, page_size)
        self._require_array("qo_indptr", qo_indptr)
        _require(self.device.is_pinned(qo_indptr), "qo_indptr is on the device: the planner waits")
        _require(len(qo_indptr) == len(kv_lens) + 1, "qo_indptr has an entry a row, and one")
        queries = np.diff(qo_indptr.numpy())
        _require(qo_indptr[0] == 0 and (queries >= 0).all(), "qo_indptr grows from 0")
        _require((queries <= kv_lens).all(), "more queries than KV: rows that see nothing")
        _require(causal, "without `causal` queries see what comes after them")
        dtypes = _dtypes(q_data_type, kv_data_type)
        heads = num_qo_heads, num_kv_heads, head_dim_qk
        self._planned(Plan(queries, kv_lens, *heads, page_size, window_left, *dtypes), *tables)

    @_recorded
    def run(
        self,
        q: Tensor,
        paged_kv_cache: tuple[Tensor, Tensor],
        *args: Any,
        k_scale: float | None = None,
        v_scale: float | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        return self._run(q, paged_kv_cache, out, k_scale, v_scale)


@contextmanager
def kernel(*touched: Tensor) -> Iterator[None]:
    """Work of one kernel: whoever watches sees the memory that it touches, and not its steps."""
    for tensor in touched:
        tensor.detach()
    with _disable_current_modes():
        yield


def attend(
    queries: np.ndarray, keys: np.ndarray, values: np.ndarray, kv_len: int, window_left: int
) -> np.ndarray:
    """Queries [n, heads, head_dim], the last n positions of kv_len, over [T, kv_heads, head_dim].

    Query i sees j iff j + n <= kv_len + i and, with a window, j + n + window_left >= kv_len + i.
    """
    n, heads, head_dim = queries.shape
    position = kv_len - n + np.arange(n)[:, None]
    key = np.arange(len(keys))
    seen = key <= position
    if window_left >= 0:
        seen &= key + window_left >= position
    first = int(seen.any(0).argmax())  # what no query sees is not read
    keys, values, seen = keys[first:], values[first:], seen[:, first:]
    grouped = queries.reshape(n, keys.shape[1], -1, head_dim)
    scores = np.einsum("nkgd,tkd->nkgt", grouped, keys) / math.sqrt(head_dim)
    scores = np.where(seen[:, None, None], scores, -np.inf)
    with np.errstate(invalid="ignore"):  # NaN for a query that sees nothing: of a wrong plan
        weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return np.einsum("nkgt,tkd->nkgd", weights, values).reshape(n, heads, head_dim)


def gathered(pool: Tensor, pages: np.ndarray, tokens: int) -> np.ndarray:
    """The first tokens of these pages, in float64 [tokens, kv_heads, head_dim]."""
    return pool[torch.from_numpy(pages)].flatten(0, 1)[:tokens].double().numpy()


def _tile(packed: int) -> int:
    """`FA2DetermineCtaTileQ` for heads of up to 128."""
    return 128 if packed > 64 else 64 if packed > 16 else 16


def _dtypes(q: Dtype | None, kv: Dtype | None) -> tuple[torch.dtype, torch.dtype]:
    """Both have to be given: the default is float16."""
    _require(isinstance(q, torch.dtype) and isinstance(kv, torch.dtype), "types are left to chance")
    assert isinstance(q, torch.dtype)
    assert isinstance(kv, torch.dtype)
    return q, kv


def _require(holds: Any, otherwise: str) -> None:
    if not holds:
        raise Refused(otherwise)
