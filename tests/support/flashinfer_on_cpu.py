"""A version of FlashInfer on the CPU: its own Python, with attention in numpy for its kernels.

A program. It reads calls from stdin and says in JSON what this version makes of them: whether its
signatures take them, how the parameters read, which modules would be compiled for our types, and
how far our attention through its wrappers is from the reference. Only what is compiled is replaced:
the two functions of a module that wrappers call (csrc/batch_prefill.cu), by position as they do.
"""

from __future__ import annotations

import inspect
import itertools
import json
import math
import sys
from collections.abc import Callable
from importlib import metadata
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from engine.backends import reference
from engine.backends.cuda.attention import FlashInferAttention
from engine.backends.cuda.split import padded, split
from engine.backends.cuda.wrappers import Scales
from engine.batch import BLOCK, Batch
from support.cpu_device import CPUDevice
from support.flashinfer_stub import attend, gathered, kernel
from tests.engine.backends.cuda.attended import BLOCKS, DUMMY, batch_of, random_batch

CAUSAL = 1
SM_SCALE = 25
KV_HEADS, HEADS = 2, 8

DTYPES = {"bfloat16": torch.bfloat16, "float8_e4m3fn": torch.float8_e4m3fn}


class Kernels:
    """A compiled module of fa2. specs: every module that was asked for, and its sources."""

    def __init__(self) -> None:
        self.specs: dict[str, list[str]] = {}
        self.plans: list[tuple[Any, ...]] = []

    def load(self, spec: Any) -> Kernels:
        """In the place of `JitSpec.build_and_load`."""
        self.specs[spec.name] = [path.name for path in spec.sources if path.stat().st_size]
        return self

    def plan(self, *args: Any) -> list[int]:
        floats, ints, pinned, qo_indptr, kv_indptr, kv_lens, tokens, rows, heads, kv_heads = args[
            :10
        ]
        assert floats.dtype == ints.dtype == pinned.dtype == torch.uint8
        for array in (qo_indptr, kv_indptr, kv_lens):
            assert array.dtype == torch.int32
            assert array.is_contiguous()
        assert len(qo_indptr) == len(kv_indptr) == len(kv_lens) + 1 == rows + 1
        assert tokens == qo_indptr[-1]
        assert heads % kv_heads == 0
        self.plans.append(args)
        return [len(self.plans) - 1]

    def ragged_run(self, *args: Any) -> None:
        """Looked up, never called."""
        raise NotImplementedError

    def paged_run(self, *args: Any) -> None:
        _, _, (plan,), q, keys, values, *tables = args[:10]
        out, _, mask_mode, _, window_left, _ = args[10:16]
        with kernel(q, keys, values, out, *tables):
            scaled = q.double() * args[SM_SCALE] * math.sqrt(q.shape[-1])
            qo_indptr, kv_indptr, indices, last = (table.numpy() for table in tables)
            for row, kv_planned in enumerate(self.plans[plan][5].tolist()):
                own = slice(qo_indptr[row], qo_indptr[row + 1])
                assert mask_mode == CAUSAL or own.stop - own.start == 1
                pages = indices[kv_indptr[row] : kv_indptr[row + 1]].astype(np.int64)
                kv_len = (len(pages) - 1) * BLOCK + int(last[row])
                kv = [gathered(pool, pages, min(kv_len, kv_planned)) for pool in (keys, values)]
                found = attend(scaled[own].numpy(), kv[0], kv[1], kv_len, window_left)
                out[own] = torch.from_numpy(found).to(out.dtype)


def bound(flashinfer: Any, call: dict[str, Any]) -> str:
    """Why this version does not take a call; empty if it does."""
    for method in _methods(flashinfer, call["kind"], call["method"]):
        values = [None] * (call["positional"] + 1)  # and self
        try:
            inspect.signature(method).bind(*values, **dict.fromkeys(call["names"]))
        except TypeError as error:
            return f"{call['kind']}.{call['method']}: {error}"
    return ""


def parameters(flashinfer: Any, kind: str, method: str) -> dict[str, list[str]]:
    """Kind and default of each parameter, by name."""
    given = inspect.signature(_methods(flashinfer, kind, method)[-1]).parameters
    return {name: [each.kind.name, repr(each.default)] for name, each in given.items()}


def _methods(flashinfer: Any, kind: str, method: str) -> list[Callable[..., Any]]:
    """The method; where it takes anything, what it hands that on to as well."""
    owner = getattr(flashinfer, kind)
    names = [method, "_plan_impl"] if method == "plan" else [method]
    return [getattr(owner, name) for name in names if hasattr(owner, name)]


def modules(flashinfer: Any, kernels: Kernels) -> dict[str, list[str]]:
    """The modules of our types, head sizes and windows, and their sources, which are written."""
    kernels.specs.clear()
    for kv_dtype, head_dim, windowed in itertools.product(DTYPES, (64, 128), (False, True)):
        q, kv = torch.bfloat16, DTYPES[kv_dtype]
        flashinfer.prefill.get_batch_prefill_module(
            "fa2", q, kv, q, torch.int32, head_dim, head_dim, 0, windowed, False, False
        )
    return dict(kernels.specs)


class Trial:
    """Our attention over this version, and how far it is from the reference at most."""

    def __init__(self, flashinfer: Any, kv_dtype: str, window: int | None, *, mixed: bool) -> None:
        self.rng, self.window, self.worst = np.random.default_rng(0), window, 0.0
        self.scales = Scales(0.5, 2.0) if kv_dtype.startswith("float8") else None
        shape = 2, BLOCKS + 1, BLOCK, KV_HEADS, 64
        drawn = torch.from_numpy(self.rng.standard_normal(shape, dtype=np.float32))
        self.pools = tuple(drawn.to(DTYPES[kv_dtype]))
        self.device = CPUDevice()
        options = {"windows": (window,), "scales": self.scales, "mixed": mixed}
        layers = [(self.pools[0], self.pools[1])]
        self.attention = FlashInferAttention(flashinfer, self.device, layers, HEADS, **options)

    def eager(self) -> None:
        for _ in range(3):
            batch = random_batch(self.rng)
            queries = self._queries(batch.tokens)
            self.attention.plan(split(batch))
            self._compare(self.attention.run(0, queries, self.window), batch, queries)

    def graph(self) -> None:
        graph = self.attention.graph(4, 40)
        queries = self._queries(4)
        out = torch.zeros_like(queries)
        captured = None
        for grown in range(14, 19):
            batch = batch_of(self.rng, (grown, 1), (grown + 30, 1), (3, 1))
            decodes = split(batch).decodes
            assert decodes is not None
            graph.plan(padded(decodes, 4, DUMMY))
            if captured is None:
                work = lambda: out.copy_(graph.run(0, queries, self.window))  # noqa: E731
                captured = self.device.capture(work)
            captured.replay()
            self._compare(out[:3], batch, queries[:3])

    def _queries(self, tokens: int) -> Tensor:
        shape = tokens, HEADS, 64
        return torch.from_numpy(self.rng.standard_normal(shape, dtype=np.float32)).bfloat16()

    def _compare(self, found: Tensor, batch: Batch, queries: Tensor) -> None:
        scales = (self.scales.keys, self.scales.values) if self.scales else (1, 1)
        pools = [pool.float().numpy() * s for pool, s in zip(self.pools, scales, strict=True)]
        expected = reference.paged_attention(batch, queries.float().numpy(), *pools, self.window)
        error = np.linalg.norm(found.float().numpy() - expected) / np.linalg.norm(expected)
        self.worst = max(self.worst, float(error))


def trials(flashinfer: Any) -> dict[str, float]:
    """The worst error of each way to set it up."""
    worst = {}
    for kv_dtype, window, mixed in itertools.product(DTYPES, (None, 20), (False, True)):
        trial = Trial(flashinfer, kv_dtype, window, mixed=mixed)
        trial.eager()
        trial.graph()
        worst[f"{kv_dtype}, window {window}, mixed {mixed}"] = trial.worst
    return worst


def main() -> None:
    calls = json.load(sys.stdin)
    empty, kernels = torch.empty, Kernels()

    def unpinned(*args: Any, pin_memory: bool = False, **kwargs: Any) -> Tensor:
        return empty(*args, **kwargs)

    import flashinfer
    from flashinfer.jit import core

    with (
        mock.patch.object(torch, "empty", unpinned),
        mock.patch.object(core.JitSpec, "build_and_load", lambda spec: kernels.load(spec)),
    ):
        said = {
            "version": metadata.version("flashinfer-python"),
            "unbound": [why for call in calls if (why := bound(flashinfer, call))],
            "parameters": {
                f"{kind}.{method}": parameters(flashinfer, kind, method)
                for kind, method in {(call["kind"], call["method"]) for call in calls}
            },
            "modules": modules(flashinfer, kernels),
            "errors": trials(flashinfer),
        }
    json.dump(said, sys.stdout)


if __name__ == "__main__":
    main()
