"""Arrays that travel to the device together, in one copy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.backends.cuda.device import Device

Array = npt.NDArray[Any]

ALIGNMENT: Final = 16
"""Bytes: of the largest element twice, since Triton compiles a kernel once more for an array that
begins elsewhere."""

TYPES: Final = {
    np.dtype(np.int64): torch.int64,
    np.dtype(np.float64): torch.float64,
    np.dtype(np.int32): torch.int32,
    np.dtype(np.uint32): torch.int32,  # the same bits: torch shifts no uint32
}


class Parcel:
    """Collects arrays of the `TYPES` and sends them as one: a copy costs more than its bytes."""

    def __init__(self) -> None:
        self._arrays: list[Array] = []

    def add(self, array: Array) -> int:
        """Put an array in; returns its place in what `send` returns. TypeError for other types."""
        if array.dtype not in TYPES:
            raise TypeError(f"{array.dtype} is not sent to a device")
        self._arrays.append(array)
        return len(self._arrays) - 1

    def send(self, device: Device) -> Sequence[Tensor]:
        """The arrays on the device, in the order they came in. Nothing is sent if all are empty."""
        sizes = [-(-array.nbytes // ALIGNMENT) * ALIGNMENT for array in self._arrays]
        packed = np.zeros(sum(sizes), dtype=np.uint8)
        start = 0
        for array, size in zip(self._arrays, sizes, strict=True):
            content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            packed[start : start + len(content)] = content
            start += size
        if not start:
            return [_nothing(array, device) for array in self._arrays]
        there = device.upload(packed)
        parts = there.split(sizes)
        return [_part(part, array) for part, array in zip(parts, self._arrays, strict=True)]


def _nothing(array: Array, device: Device) -> Tensor:
    return torch.empty(array.shape, dtype=TYPES[array.dtype], device=device.torch_device)


def _part(part: Tensor, array: Array) -> Tensor:
    return part[: array.nbytes].view(TYPES[array.dtype]).view(array.shape)
