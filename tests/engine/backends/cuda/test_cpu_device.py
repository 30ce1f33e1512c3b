"""The stand-in for a GPU fails where a GPU would compute something else."""

import numpy as np
import pytest
import torch
from support.cpu_device import CPUDevice, Indiscipline


@pytest.fixture
def device() -> CPUDevice:
    return CPUDevice()


def test_an_upload_does_not_see_what_the_array_becomes(device):
    array = np.arange(3, dtype=np.int32)
    there = device.upload(array)
    array[:] = 7
    assert there.tolist() == [0, 1, 2]
    assert there.dtype == torch.int32


def test_a_pinned_buffer_must_not_be_written_to(device):
    buffer = device.pinned(np.arange(3, dtype=np.int32))
    device.synchronize()
    buffer[0] = 5
    with pytest.raises(Indiscipline, match="written to"):
        device.synchronize()


def test_awaiting_an_event_looks_at_the_pinned_buffers_too(device):
    event = device.event()
    event.record()
    device.pinned(np.arange(3, dtype=np.int32))[0] = 5
    with pytest.raises(Indiscipline, match="written to"):
        event.synchronize()
    assert (event.recorded, event.awaited) == (1, 1)


def test_a_download_is_the_tensor_as_it_was_when_it_began(device):
    tensor = torch.arange(3)
    download = device.download(tensor)
    tensor.zero_()
    assert download.wait().tolist() == [0, 1, 2]
    assert device.trace == ["download", "wait"]
    assert device.waits == 1


def test_a_replay_reads_what_the_buffers_hold_by_then(device):
    x, y = torch.ones(2), torch.zeros(2)
    graph = device.capture(lambda: y.copy_(x * 2))
    x.fill_(5)
    graph.replay()
    assert y.tolist() == [10, 10]


def test_a_replay_on_other_tensors_fails(device):
    inputs = [torch.ones(2)]
    out = torch.zeros(2)
    graph = device.capture(lambda: out.copy_(inputs[0] + 1))
    graph.replay()
    inputs[0] = torch.ones(2)
    with pytest.raises(Indiscipline, match="other tensors"):
        graph.replay()


@pytest.mark.parametrize(
    "look",
    [
        lambda x: x.sum().item(),
        lambda x: x.nonzero(),
        lambda x: x[x > 0],
    ],
)
def test_work_that_looks_at_numbers_cannot_be_captured(device, look):
    x = torch.ones(2)
    with pytest.raises(Indiscipline, match="has to wait"):
        device.capture(lambda: look(x))


def test_nothing_is_uploaded_while_a_graph_is_captured(device):
    out = torch.zeros(2)
    runs = []

    def work() -> None:
        if runs:
            out.copy_(device.upload(np.ones(2)))
        runs.append(1)

    with pytest.raises(Indiscipline, match="upload"):
        device.capture(work)


def test_what_was_asked_for_is_done_when_something_behind_it_was_awaited(device):
    early, late = device.event(), device.event()
    early.record()
    device.upload(np.zeros(1))
    late.record()
    early.synchronize()
    assert device.reached == 1
    late.synchronize()
    assert device.reached == 3
    download = device.download(torch.zeros(1))
    device.upload(np.zeros(1))
    download.wait()
    assert device.reached == device.trace.index("download") + 1
    device.synchronize()
    assert device.reached == len(device.trace)


def test_an_event_that_was_never_recorded_says_nothing(device):
    device.upload(np.zeros(1))
    device.event().synchronize()
    assert device.reached == 0


def test_only_what_was_handed_over_as_pinned_is_pinned(device):
    array = np.zeros(1, np.int32)
    assert device.is_pinned(device.pinned(array))
    assert not device.is_pinned(device.upload(array))
