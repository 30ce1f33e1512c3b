"""Triton's interpreter, rounding and multiplying as a GPU does, with the NumPy of today.

What the interpreter runs is decided where a kernel is defined, and for Triton's own functions where
Triton is imported: tests/conftest.py has said so by then. Of Triton 3.6 this mends that

- bfloat16 is cut off where it should be rounded, and eight bits lose the carry of a rounding,
- matrix products multiply the bits of bfloat16 as if they were whole numbers,
- loops with bounds that a kernel read turn arrays into numbers in a way that NumPy 2.4 refuses.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter

if not isinstance(tl.sum, interpreter.InterpretedFunction):
    raise RuntimeError("triton was imported without TRITON_INTERPRET=1")

Builder = interpreter.InterpreterBuilder

TORCH = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp8e4nv": torch.float8_e4m3fn,
    "fp8e5": torch.float8_e5m2,
}
BITS = {1: torch.uint8, 2: torch.uint16, 4: torch.uint32, 8: torch.uint64}


@contextmanager
def interpreted() -> Iterator[None]:
    """Let numbers overflow and be none without a word, as they do on a GPU."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "All-NaN", RuntimeWarning)
        yield


def convert(numbers: np.ndarray, source: Any, target: Any, rounding: object) -> np.ndarray:
    """Numbers of one floating-point type in another one, to the nearest, as whole numbers."""
    taken = torch.from_numpy(np.array(numbers)).view(TORCH[source.name])
    given = taken.to(TORCH[target.name])
    return given.view(BITS[given.itemsize]).numpy()


def multiply(original: Callable[..., Any]) -> Callable[..., Any]:
    """The product of two matrices, in float32 if they have fewer bits."""

    def create_dot(self: object, a: Any, b: Any, *others: Any) -> Any:
        return original(self, _widened(a), _widened(b), *others)

    return create_dot


def _widened(handle: Any) -> Any:
    kind = handle.dtype.scalar
    if kind.name in ("fp32", "fp64"):
        return handle
    wide = convert(handle.data, kind, tl.float32, None).view(np.float32)
    return interpreter.TensorHandle(wide, tl.float32)


def patch_tensor(original: Callable[..., None]) -> Callable[..., None]:
    """What makes tensors work while a kernel runs; their numbers bound loops."""

    def patched(tensor: type, scope: Any) -> None:
        original(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    return patched


interpreter._convert_float = convert
Builder.create_dot = multiply(Builder.create_dot)
interpreter._patch_lang_tensor = patch_tensor(interpreter._patch_lang_tensor)
