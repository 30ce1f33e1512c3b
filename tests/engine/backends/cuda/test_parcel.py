"""Arrays that travel together."""

import numpy as np
import pytest
import torch
from support.cpu_device import CPUDevice

from engine.backends.cuda.parcel import Parcel

ARRAYS = [
    np.arange(3, dtype=np.int64),
    np.array([[1, -2, 3]], dtype=np.int32),
    np.empty((0, 4), dtype=np.float64),
    np.array([[0.5], [-1e300]]),
    np.array([0xFFFF_FFFF], dtype=np.uint32),
    np.arange(12, dtype=np.int64).reshape(3, 4).T,
]


def test_arrays_of_all_types_arrive_in_one_copy_as_they_were():
    device, parcel = CPUDevice(), Parcel()
    places = [parcel.add(array) for array in ARRAYS]
    sent = parcel.send(device)
    assert device.trace == ["upload"]
    for place, array in zip(places, ARRAYS, strict=True):
        assert sent[place].shape == array.shape
        assert (sent[place].data_ptr() - sent[0].data_ptr()) % 16 == 0
        assert np.array_equal(sent[place].numpy().view(array.dtype), array)


def test_arrays_begin_where_one_kernel_can_read_them_all():
    """At multiples of 16 bytes, which Triton would otherwise compile other kernels for."""
    parcel = Parcel()
    for rows in (1, 2, 3):
        parcel.add(np.zeros((rows, 1)))
        parcel.add(np.zeros(rows, np.int32))
    assert [part.storage_offset() * part.itemsize % 16 for part in parcel.send(CPUDevice())] == [
        0
    ] * 6


def test_nothing_is_sent_if_all_arrays_are_empty():
    device, parcel = CPUDevice(), Parcel()
    parcel.add(np.empty((2, 0), dtype=np.uint32))
    (there,) = parcel.send(device)
    assert (there.shape, there.dtype, device.trace) == ((2, 0), torch.int32, [])


def test_a_type_that_the_device_does_not_take_is_refused():
    parcel = Parcel()
    with pytest.raises(TypeError):
        parcel.add(np.array([True]))
