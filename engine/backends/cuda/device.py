"""What the CUDA backend asks of a GPU: copies that do not wait, events, graphs, memory.

Everything runs in order on one stream, the compute stream, so what is enqueued later sees what was
enqueued before. The host waits in `Download.wait`, `Event.synchronize` and `Device.synchronize`
only. What is copied to the device comes from pinned memory that nobody writes to again: torch keeps
such memory until the copy is done, but not what is in it.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

PORTABLE: Final = 1
"""cudaHostRegisterPortable: memory is pinned for all devices, not for the current one alone."""


class Event(Protocol):
    """A place in the compute stream that the host can wait for."""

    def record(self) -> None:
        """Put the event behind all that was enqueued."""
        ...

    def synchronize(self) -> None:
        """Wait until the stream reached where it was recorded last; at once if it never was."""
        ...


class Graph(Protocol):
    """Work that was captured, and can be enqueued again as a whole."""

    def replay(self) -> None:
        """Enqueue the work once more, on the very tensors that it was captured with."""
        ...


class Download(Protocol):
    """A copy from the device that was begun."""

    def wait(self) -> Tensor:
        """Wait for the copy; returns it, on the host."""
        ...


class Device(Protocol):
    """Where tensors live and work is enqueued.

    Used from one thread at a time, within `active()`.
    """

    torch_device: torch.device

    def active(self) -> AbstractContextManager[Any]:
        """Make this the device of the calling thread, for everything that asks for the current."""
        ...

    def upload(self, array: npt.NDArray[Any]) -> Tensor:
        """Copy an array to the device without waiting. The array may be written to at once."""
        ...

    def pinned(self, array: npt.NDArray[np.int32]) -> Tensor:
        """A copy of an array in pinned host memory. It must not be written to."""
        ...

    def pinned_zeros(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Pinned host memory to keep things in; copies to and from it need not wait."""
        ...

    def download(self, tensor: Tensor) -> Download:
        """Start copying a tensor, as it is behind all that was enqueued, to the host."""
        ...

    def event(self) -> Event:
        """An event that was not recorded yet."""
        ...

    def capture(self, work: Callable[[], None]) -> Graph:
        """Run `work` once, then capture it.

        It must neither wait nor depend on numbers of the host, and what it reads and writes must
        outlive the graph. Tensors that it makes are void at the next replay of any graph.
        """
        ...

    def free_memory(self) -> tuple[int, int]:
        """(free, total) bytes; free without what torch keeps for tensors to come."""
        ...

    def release_cached(self) -> None:
        """Give back the memory that torch keeps for tensors to come."""
        ...

    def synchronize(self) -> None:
        """Wait for everything that was enqueued."""
        ...


class CUDADevice:
    """One GPU, through torch (the Device protocol).

    index: which of the visible ones. Raises RuntimeError if torch finds no such GPU.
    """

    def __init__(self, index: int = 0) -> None:
        self.torch_device = torch.device("cuda", index)
        try:
            torch.cuda.get_device_properties(self.torch_device)
        except AssertionError as error:  # torch's word for "built without CUDA", "no such index"
            raise RuntimeError(f"torch finds no GPU {index}: {error}") from error
        self._graphs: Any = None  # the memory that all graphs share
        self._capturing = torch.cuda.Stream(self.torch_device)

    def active(self) -> AbstractContextManager[Any]:
        return torch.cuda.device(self.torch_device)

    def upload(self, array: npt.NDArray[Any]) -> Tensor:
        return _in_pinned_memory(array).to(self.torch_device, non_blocking=True)

    def pinned(self, array: npt.NDArray[np.int32]) -> Tensor:
        return _in_pinned_memory(array)

    def pinned_zeros(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Registered memory: torch's own pinned memory is rounded up to a power of two, and a pool
        of 40 GiB would take 64 (c10's CachingHostAllocator)."""
        size = math.prod(shape) * dtype.itemsize
        if not size:
            return torch.zeros(tuple(shape), dtype=dtype)
        memory = np.zeros(size, np.uint8)
        _register(memory)
        return torch.from_numpy(memory).view(dtype).view(tuple(shape))

    def download(self, tensor: Tensor) -> Download:
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        host.copy_(tensor, non_blocking=True)
        done = self.event()
        done.record()
        return _CUDADownload(host, done)

    def event(self) -> Event:
        return _CUDAEvent(self.torch_device)

    def capture(self, work: Callable[[], None]) -> Graph:
        compute, aside = torch.cuda.current_stream(self.torch_device), self._capturing
        aside.wait_stream(compute)
        with torch.cuda.stream(aside):
            work()
        graph = torch.cuda.CUDAGraph()
        # Other threads may go on calling CUDA meanwhile.
        mode = "thread_local"
        with torch.cuda.graph(graph, pool=self._graphs, stream=aside, capture_error_mode=mode):
            work()
        compute.wait_stream(aside)
        if self._graphs is None:
            self._graphs = graph.pool()
        return graph

    def free_memory(self) -> tuple[int, int]:
        free, total = torch.cuda.mem_get_info(self.torch_device)
        return free, total

    def release_cached(self) -> None:
        torch.cuda.empty_cache()

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.torch_device)


class _CUDAEvent:
    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._event = torch.cuda.Event()

    def record(self) -> None:
        self._event.record(torch.cuda.current_stream(self._device))

    def synchronize(self) -> None:
        self._event.synchronize()


class _CUDADownload:
    def __init__(self, host: Tensor, done: Event) -> None:
        self._host = host
        self._done = done

    def wait(self) -> Tensor:
        self._done.synchronize()
        return self._host


def _in_pinned_memory(array: npt.NDArray[Any]) -> Tensor:
    """A copy of its own: torch tells by it when the memory may be used again."""
    # `torch.tensor(array, pin_memory=True)` would be refused: it pins nothing that numpy made.
    dtype = torch.from_numpy(np.empty(0, array.dtype)).dtype
    host = torch.empty(array.shape, dtype=dtype, pin_memory=True)
    host.numpy()[...] = array
    return host


def _register(memory: npt.NDArray[np.uint8]) -> None:
    """Pin memory where it is, for as long as the array lives, or a view of it.

    Raises RuntimeError if it cannot be pinned.
    """
    runtime, start = torch.cuda.cudart(), memory.ctypes.data
    if error := int(runtime.cudaHostRegister(start, memory.nbytes, PORTABLE)):
        raise RuntimeError(f"{memory.nbytes} bytes cannot be pinned: CUDA's error {error}")
    weakref.finalize(memory, runtime.cudaHostUnregister, start).atexit = False
