"""Native int8 products are what integers say, on every instruction set."""

import numpy as np
import pytest
import torch

from engine.native import library as native
from tests.engine.native.tiny import ISAS, library

SHAPES = [(1, 4, 16), (3, 576, 33), (13, 1538, 80), *((n, 128, 112) for n in (1, 2, 16, 17, 100))]
"""Rows, inputs, outputs: some fill tiles of 16 rows and 64 inputs, some do not."""


def products(isa: str, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    if not library().octavo_has(isa.encode()):
        pytest.skip(f"{isa} cannot be used here")
    engine = library().octavo_engine_new(isa.encode())
    packed = native.pack(torch.from_numpy(w))
    outputs, inputs = packed.shape[0] * 16, packed.shape[1] * 4
    matrix = native.Matrix(packed.data_ptr(), None, None, outputs, inputs)
    padded = np.zeros((len(x), inputs), np.int8)
    padded[:, : x.shape[1]] = x
    out = np.empty((len(x), outputs), np.int32)
    library().octavo_dots(engine, matrix, padded.ctypes.data, len(x), out.ctypes.data)
    library().octavo_engine_free(engine)
    return out[:, : len(w)]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("extreme", [False, True])
@pytest.mark.parametrize(("rows", "inputs", "outputs"), SHAPES)
def test_sums_equal_int64(isa, extreme, rows, inputs, outputs) -> None:
    rng = np.random.default_rng(inputs)
    low = 127 if extreme else -127
    x = rng.integers(low, 127, (rows, inputs), np.int8, endpoint=True)
    w = rng.integers(low, 127, (outputs, inputs), np.int8, endpoint=True)
    if extreme:
        w[::2] *= -1
    assert np.array_equal(products(isa, x, w), x.astype(np.int64) @ w.astype(np.int64).T)
