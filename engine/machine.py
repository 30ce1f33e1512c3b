"""What this machine can do, roughly: its memory, its bandwidth and its arithmetic, measured."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from engine.backends.memory import usable_memory
from engine.capacity import Device

_MATRIX_BYTES = 256 << 20
"""Larger than caches are. A machine with little memory gets an eighth of that."""

_PRODUCT = 1024
"""Rows and columns of the matrices multiplied to find the arithmetic's rate."""


def this_machine() -> Device:
    """This machine as a device: estimates, from products of float32 matrices in numpy.

    Takes about a second. Other work on the machine lowers both rates, and so does a numpy without
    a fast BLAS.
    """
    memory = usable_memory()
    return Device(
        name="this machine",
        memory_bytes=memory,
        bytes_per_s=_bandwidth(min(_MATRIX_BYTES, memory // 8)),
        flops_per_s=_flops(),
        measured=True,
        source="measured with numpy in float32",
    )


def _bandwidth(size: int) -> float:
    """Bytes a second at which a matrix of `size` bytes times a vector is read, as decoding does."""
    columns = 4096
    matrix = np.ones((max(1, size // (4 * columns)), columns), np.float32)
    vector = np.ones(columns, np.float32)
    return matrix.nbytes / _best(lambda: matrix @ vector)


def _flops() -> float:
    """Multiplications and additions a second in a product of two square matrices."""
    matrix = np.ones((_PRODUCT, _PRODUCT), np.float32)
    return 2 * _PRODUCT**3 / _best(lambda: matrix @ matrix)


def _best(work: Callable[[], object], rounds: int = 5) -> float:
    """The seconds of the quickest of several rounds: the one that was disturbed least."""
    seconds = []
    for _ in range(rounds):
        begin = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begin)
    return min(seconds)
