"""The stand-in with tensors of its own fails where the host would have to wait for a GPU."""

import numpy as np
import pytest
import torch
from support.cpu_device import Indiscipline
from support.strict_device import StrictDevice


@pytest.fixture
def device() -> StrictDevice:
    return StrictDevice()


@pytest.fixture
def x(device):
    return device.upload(np.ones((3, 4), np.float32))


@pytest.fixture(params=[False, True], ids=["plain", "inference"], autouse=True)
def mode(request, device):
    with device.active(), torch.inference_mode(request.param):
        yield


WAITS = {
    "item": lambda x: x.sum().item(),
    "float": lambda x: float(x[0, 0]),
    "truth": lambda x: bool((x > 0).any()),
    "list": lambda x: x.tolist(),
    "array": lambda x: x.numpy(),
    "nonzero": lambda x: x.nonzero(),
    "where": lambda x: torch.where(x > 0),
    "mask": lambda x: x[x > 0],
    "put by mask": lambda x: x.__setitem__(x > 0, 1.0),
    "masked select": lambda x: x.masked_select(x > 0),
    "unique": lambda x: x.unique(),
    "repeats": lambda x: x.repeat_interleave((x[0] > 0).long(), 1),
    "places in a list": lambda x: x[[0, 1]],
    "to the host": lambda x: x.cpu(),
    "to the host at once": lambda x: x.to("cpu", non_blocking=True),
    "a list": lambda x: torch.tensor([1, 2], device=x.device),
    "from memory that is not pinned": lambda x: torch.ones(2).to(x.device, non_blocking=True),
    "into it": lambda x: x.copy_(torch.ones(3, 4), non_blocking=True),
}

REFUSED = {
    "places on the host": lambda x: x.index_select(0, torch.arange(2)),
    "numbers on the host": lambda x: x + torch.arange(4),
    "a matrix on the host": lambda x: torch.nn.functional.linear(x, torch.ones(2, 4)),
}


@pytest.mark.parametrize("work", WAITS.values(), ids=WAITS)
def test_what_waits_fails(x, work):
    with pytest.raises(Indiscipline):
        work(x)


@pytest.mark.parametrize("work", REFUSED.values(), ids=REFUSED)
def test_what_is_on_both_sides_fails(x, work):
    with pytest.raises(Indiscipline, match="on the host and on the device"):
        work(x)


def test_what_is_computed_is_what_a_cpu_computes(device, x):
    x.mul_(torch.arange(4, device=x.device))
    x[1:].view(-1)[::2].add_(1)
    best = x.max(dim=-1)
    x.index_copy_(0, best.indices[:1] - 3, x[2:] * 2)
    assert device.download(x).wait().tolist() == [[2, 2, 6, 6], [1, 1, 3, 3], [1, 1, 3, 3]]
    assert x.device == device.torch_device


def test_pinned_memory_is_copied_without_waiting(device, x):
    pinned = device.pinned_zeros((3, 4), torch.float32)
    pinned.copy_(x, non_blocking=True)
    x.zero_()
    x[0].copy_(pinned[1], non_blocking=True)
    assert device.download(x.sum(dim=1)).wait().tolist() == [4, 0, 0]
    with pytest.raises(Indiscipline):
        x[0].copy_(pinned[1])


def test_graphs_are_replayed_on_the_tensors_they_were_captured_with(device, x):
    out = torch.zeros_like(x)
    graph = device.capture(lambda: out.copy_(x * 2))
    x.fill_(4)
    graph.replay()
    assert device.download(out[0]).wait().tolist() == [8, 8, 8, 8]
    with pytest.raises(Indiscipline, match="wait"):
        device.capture(lambda: out[out > 0])
