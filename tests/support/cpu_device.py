"""The CPU in the place of a GPU: computes at once, and fails where a GPU would go wrong.

memory in pinned buffers that is written to after it was handed over
a download that is read before it was waited for
work that waits, uploads, or looks at numbers while it is captured
a graph that is replayed on other tensors than it was captured with
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

GIB = 1 << 30

IN_FLIGHT = 64
"""Pinned buffers that may still be read, the newest; a step has a few."""

LOOKS = {
    "aten::_local_scalar_dense",
    "aten::_unique2",
    "aten::allclose",
    "aten::bincount",
    "aten::equal",
    "aten::is_nonzero",
    "aten::item",
    "aten::masked_select",
    "aten::nonzero",
    "aten::repeat_interleave",
    "aten::unique_consecutive",
    "aten::unique_dim",
}
"""Operators whose result the host must know before it can go on."""


class Indiscipline(AssertionError):
    """Something that works on the CPU and would not on a GPU."""


class CPUDevice:
    """The Device protocol on the CPU.

    trace: names of what was asked for, in order: "upload", "pinned", "download", "wait", "record",
    "await" (an event), "capture", "replay", "synchronize". waits: how often the host waited.
    reached: how many of them a GPU has certainly done. memory: the (free, total) bytes that it
    claims.
    """

    def __init__(self, memory: tuple[int, int] = (8 * GIB, 8 * GIB)) -> None:
        self.torch_device = torch.device("cpu")
        self.trace: list[str] = []
        self.reached = 0
        self.memory = memory
        self._handed_over: deque[tuple[Tensor, Tensor]] = deque(maxlen=IN_FLIGHT)
        self._capturing = False

    @property
    def waits(self) -> int:
        return sum(self.trace.count(name) for name in ("wait", "await", "synchronize"))

    def active(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def upload(self, array: npt.NDArray[Any]) -> Tensor:
        self._note("upload")
        return torch.tensor(array)

    def pinned(self, array: npt.NDArray[np.int32]) -> Tensor:
        self._note("pinned")
        buffer = torch.tensor(array)
        self._handed_over.append((buffer, buffer.clone()))
        return buffer

    def pinned_zeros(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        return torch.zeros(tuple(shape), dtype=dtype)

    def download(self, tensor: Tensor) -> CPUDownload:
        self._note("download")
        return CPUDownload(self, tensor.clone())

    def event(self) -> CPUEvent:
        return CPUEvent(self)

    def capture(self, work: Callable[[], None]) -> CPUGraph:
        self._note("capture")
        work()
        with self._captured() as seen:
            work()
        return CPUGraph(self, work, seen.outside)

    def free_memory(self) -> tuple[int, int]:
        return self.memory

    def release_cached(self) -> None:
        return None

    def synchronize(self) -> None:
        self._note("synchronize")
        self.reached = len(self.trace)
        self.check()

    def is_pinned(self, tensor: Tensor) -> bool:
        """Whether it is a pinned buffer that was handed over, and not on the device."""
        return any(tensor is buffer for buffer, _ in self._handed_over)

    def check(self) -> None:
        """Raise Indiscipline if a pinned buffer is not what it was when it was handed over."""
        for buffer, before in self._handed_over:
            if not torch.equal(buffer, before):
                raise Indiscipline("a pinned buffer was written to after it was handed over")

    def _note(self, name: str) -> None:
        if self._capturing:
            raise Indiscipline(f"{name} while a graph is captured")
        self.trace.append(name)

    @contextmanager
    def _captured(self) -> Iterator[_Watch]:
        self._capturing = True
        try:
            with _Watch() as seen:
                yield seen
        finally:
            self._capturing = False


@dataclass
class CPUEvent:
    """An event. recorded, awaited: how often."""

    device: CPUDevice
    recorded: int = 0
    awaited: int = 0
    _place: int = 0

    def record(self) -> None:
        self.device._note("record")
        self.recorded += 1
        self._place = len(self.device.trace)

    def synchronize(self) -> None:
        self.device._note("await")
        self.awaited += 1
        self.device.reached = max(self.device.reached, self._place)
        self.device.check()


class CPUDownload:
    """A copy that is not there before it was waited for."""

    def __init__(self, device: CPUDevice, copied: Tensor) -> None:
        self._device = device
        self._copied = copied
        self._place = len(device.trace)

    def wait(self) -> Tensor:
        self._device._note("wait")
        self._device.reached = max(self._device.reached, self._place)
        return self._copied


@dataclass
class CPUGraph:
    """Work, and the memory that it was captured with."""

    device: CPUDevice
    work: Callable[[], None]
    outside: set[int]

    def replay(self) -> None:
        self.device._note("replay")
        with self.device._captured() as seen:
            self.work()
        if not seen.outside <= self.outside:
            raise Indiscipline("a graph was replayed on other tensors than it was captured with")


@dataclass
class _Watch(TorchDispatchMode):
    """Sees each operator of some work. outside: addresses of memory that the work did not make."""

    outside: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()
        self._made: dict[int, Tensor] = {}  # kept, so that no address is used twice

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # or torch imports its compiler, which takes seconds

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        with self:  # under inference_mode operators come as they are written, not in parts
            parts = func.decompose(*args, **(kwargs or {}))
        if parts is not NotImplemented:
            return parts
        taken = list(_tensors((args, kwargs or {})))
        if func.name().split(".")[0] in LOOKS or masks(func.name(), taken):
            raise Indiscipline(f"{func.name()} while a graph is captured: the host has to wait")
        self.outside |= {_address(t) for t in taken if t.numel()} - self._made.keys()
        result = func(*args, **(kwargs or {}))
        for tensor in _tensors(result):
            if tensor.numel() and _address(tensor) not in self.outside:
                self._made.setdefault(_address(tensor), tensor)
        return result


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _tensors(each)
    elif isinstance(value, tuple | list):
        for each in value:
            yield from _tensors(each)


def masks(name: str, taken: Sequence[Tensor]) -> bool:
    """Whether an operator with these operands picks elements by a mask."""
    return name.startswith("aten::index") and any(t.dtype == torch.bool for t in taken[1:])


def _address(tensor: Tensor) -> int:
    tensor = getattr(tensor, "there", tensor)  # see `strict_device`
    return tensor.untyped_storage().data_ptr()
