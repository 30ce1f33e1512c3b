"""What no step on this machine undercuts: how fast memory is read and int8 products are computed.

Both are measured with torch's own kernels on the threads that torch has, on matrices larger than
caches are and large enough for a product to pay. The quickest of several rounds counts: the one
that was disturbed least.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from engine.backends.memory import usable_memory
from engine.capacity import Roofline

READ_BYTES = 256 << 20
"""Larger than caches are. A machine with little memory gets an eighth of that."""

ROWS, WIDTH = 256, 2048
"""Rows, inputs and outputs of the product: some work for each core, weights that a cache holds."""


def measure() -> Roofline:
    """Measure, which takes less than a second. Other work on the machine lowers both rates."""
    return Roofline(_read_rate(min(READ_BYTES, usable_memory() // 8)), _int8_rate())


def _read_rate(size: int) -> float:
    """A matrix of `size` bytes times a vector, which reads it once, as decoding reads weights."""
    columns = 4096
    matrix = torch.ones(max(1, size // (4 * columns)), columns)
    vector = torch.ones(columns)
    return 4 * matrix.numel() / _best(lambda: matrix @ vector, 5)


def _int8_rate() -> float:
    rows = torch.ones(ROWS, WIDTH, dtype=torch.int8)
    weights = torch.ones(WIDTH, WIDTH, dtype=torch.int8).t()
    return 2 * ROWS * WIDTH * WIDTH / _best(lambda: torch._int_mm(rows, weights), 40)


def _best(work: Callable[[], object], rounds: int) -> float:
    """The seconds of the quickest round."""
    seconds = []
    for _ in range(rounds):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return min(seconds)
