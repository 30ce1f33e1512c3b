"""Compiles every kernel of the CUDA backend for an H200, with neither a GPU nor a driver.

`python tests/support/compiled_kernels.py` goes through the launches of models of three shapes,
stops each where it would be put on the stream, and prints a line of JSON for each kernel that it
compiled:

    name, dtypes (of activations and KV), shared (bytes), registers (of a thread), spilled (bytes)
    and wide: whether it reads 16 bytes at once
"""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from engine.backends.cuda.draw import DrawControls
from engine.backends.cuda.kernels.draws import draw_in_triton
from engine.backends.cuda.ops import FP8, Heads
from engine.backends.cuda.split import split
from engine.backends.cuda.triton_attention import TritonAttention
from engine.backends.cuda.triton_ops import TritonOps
from engine.batch import BLOCK
from engine.models.rope import RopeTable
from support.cpu_device import CPUDevice
from tests.engine.backends.batches import Work, make_batch

H200 = GPUTarget("cuda", 90, 32)
BLOCKS = 40


@dataclass(frozen=True)
class Shape:
    """Of a model, as far as kernels know it."""

    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    ffn: int
    normalised: bool = False


LLAMA = Shape(32, 8, 128, 4096, 14336)  # Llama 3.1 8B
SMALL = Shape(9, 3, 64, 576, 1536)  # SmolLM2 135M
QWEN = Shape(16, 8, 128, 1024, 3072, normalised=True)  # Qwen3 0.6B

Run = Callable[..., Any]


class Driver:
    """As much of a driver as compiling asks for."""

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return H200


def compiling(run: Run, dtypes: list[str]) -> Run:
    """A launch that compiles and goes no further, and prints what is new."""

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        with contextlib.redirect_stdout(io.StringIO()) as log:
            kernel = run(self, *args, grid=grid, warmup=True, **options)
        if log.getvalue():
            told = {
                "name": kernel.metadata.name,
                "dtypes": dtypes,
                **report(kernel, log.getvalue()),
            }
            print(json.dumps(told), flush=True)

    return compile_only


def report(kernel: Any, log: str) -> dict[str, Any]:
    """What the assembler says."""
    spilled = sum(map(int, re.findall(r"(\d+) bytes spill", log)))
    registers = max(map(int, re.findall(r"Used (\d+) registers", log)))
    reads = r"ld\.global[.\w:]*\.v4\.b32|ld\.global[.\w:]*\.v2\.b64|cp\.async[.\w]* [^;]*, 0x10"
    wide = re.search(reads, kernel.asm["ptx"]) is not None
    return {
        "shared": kernel.metadata.shared,
        "registers": registers,
        "spilled": spilled,
        "wide": wide,
    }


def launch(shape: Shape, dtype: torch.dtype, kept: torch.dtype) -> None:
    """Everything that a layer of such a model launches."""
    ops, tokens = TritonOps(), 70
    x = torch.empty(tokens, shape.hidden, dtype=dtype)
    weight = torch.empty(shape.hidden, dtype=dtype)
    ops.rms_norm(x, weight, 1e-5)
    ops.add_rms_norm(x, x, weight, 1e-5)
    ops.silu_mul(torch.empty(tokens, 2 * shape.ffn, dtype=dtype))

    pool = [torch.empty(2, BLOCKS, BLOCK, shape.kv_heads, shape.head_dim).to(kept) for _ in "kv"]
    norm = torch.empty(shape.head_dim, dtype=dtype) if shape.normalised else None
    heads = Heads(shape.heads, shape.kv_heads, shape.head_dim, norm, norm, 1e-5)
    vectors = torch.empty(tokens, shape.heads + 2 * shape.kv_heads, shape.head_dim, dtype=dtype)
    table = torch.empty(100, shape.head_dim // 2)
    places = torch.zeros(tokens, dtype=torch.int64)
    keys, values = (part[0].flatten(0, 1) for part in pool)
    rope = RopeTable(table, table)
    queries = ops.rotate_and_write(vectors.flatten(1), places, places, rope, keys, values, heads)
    ops.move_blocks(pool, pool, places, places)
    for chunk in (2, 5, 20, 69):
        for decodes in (1, 64):
            attend(queries, pool, decodes, chunk)


def attend(queries: torch.Tensor, pool: list[torch.Tensor], decodes: int, chunk: int) -> None:
    """So many decodes and a chunk."""
    work = [Work([i % BLOCKS], 3, [0]) for i in range(decodes)]
    work.append(Work(list(range(5)), 0, [0] * chunk))
    attention = TritonAttention(CPUDevice(), [(pool[0][0], pool[1][0])], queries.shape[1])
    attention.plan(split(make_batch(work)))
    attention.run(0, queries.new_empty(decodes + chunk, *queries.shape[1:]), None)


def draw(vocab: int) -> None:
    """Tokens, with and without filters."""
    logits, ones = torch.empty(3, vocab), torch.ones(3, 1, dtype=torch.float64)
    for filters in ((None, None, None), (ones.long(), ones, ones)):
        draw_in_triton(logits, logits[:, 0], DrawControls(ones, ones, *filters))


def main() -> None:
    triton.runtime.driver.set_active(Driver())
    triton.knobs.nvidia.dump_ptxas_log = True
    dtypes: list[str] = []
    JITFunction.run = compiling(JITFunction.run, dtypes)
    for shape in (LLAMA, SMALL, QWEN):
        for kept in (torch.bfloat16, FP8):
            dtypes[:] = ["bfloat16", str(kept).removeprefix("torch.")]
            launch(shape, torch.bfloat16, kept)
    dtypes[:] = ["float32", "float32"]
    launch(SMALL, torch.float32, torch.float32)
    for vocab in (128_256, 49_152):
        draw(vocab)


if __name__ == "__main__":
    main()
