"""What `CUDADevice` asks of torch, as far as a machine without a GPU can say no to it."""

import gc

import numpy as np
import pytest
import torch

from engine.backends.cuda import device as cuda


@pytest.fixture
def pinned(monkeypatch):
    """Allocates without pinning, and lists what was to be pinned."""
    asked, empty = [], torch.empty

    def unpinned(shape, *, dtype, pin_memory=False):
        made = empty(shape, dtype=dtype)
        asked.append((made.data_ptr(), pin_memory))
        return made

    monkeypatch.setattr(torch, "empty", unpinned)
    return asked


class Runtime:
    """CUDA's runtime, as far as registering memory goes."""

    def __init__(self, error: int = 0) -> None:
        self.error = error
        self.registered: dict[int, int] = {}

    def cudaHostRegister(self, start: int, size: int, flags: int) -> int:
        self.registered[start] = size
        return self.error

    def cudaHostUnregister(self, start: int) -> int:
        del self.registered[start]
        return 0


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.int32).reshape(2, 3),
        np.arange(8, dtype=np.int64)[::2],
        np.zeros((0, 4), np.float64),
        np.frombuffer(b"read only", dtype=np.uint8),
        np.array(7, dtype=np.int64),
    ],
)
def test_any_array_is_copied_to_pinned_memory(pinned, array):
    copy = cuda._in_pinned_memory(array)
    assert pinned == [(copy.data_ptr(), True)]
    assert copy.shape == array.shape
    np.testing.assert_array_equal(copy.numpy(), array)
    assert copy.numpy().dtype == array.dtype


def test_memory_to_keep_is_pinned_as_large_as_it_is_and_for_as_long(monkeypatch):
    runtime = Runtime()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    kept = cuda.CUDADevice.pinned_zeros(None, (3, 5), torch.int64)
    assert kept.shape == (3, 5)
    assert kept.dtype == torch.int64
    assert not kept.any()
    assert runtime.registered == {kept.data_ptr(): 3 * 5 * 8}
    view = kept[1]
    del kept
    gc.collect()
    assert runtime.registered, "a view still needs the memory"
    del view
    gc.collect()
    assert not runtime.registered


def test_no_memory_to_keep_is_not_pinned(monkeypatch):
    monkeypatch.setattr(torch.cuda, "cudart", Runtime)
    assert cuda.CUDADevice.pinned_zeros(None, (0, 5), torch.int64).shape == (0, 5)


def test_memory_that_cannot_be_pinned_is_an_error(monkeypatch):
    monkeypatch.setattr(torch.cuda, "cudart", lambda: Runtime(error=2))
    with pytest.raises(RuntimeError, match="120 bytes cannot be pinned"):
        cuda.CUDADevice.pinned_zeros(None, (3, 5), torch.int64)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_gpu_is_said_as_a_runtime_error():
    with pytest.raises(RuntimeError, match="GPU"):
        cuda.CUDADevice()
