"""Ranks that compute on a GPU each, and what step N + 1 has to know of step N there.

    rank 0    step N ─▶ logits ─▶ sample ─▶ tokens ──broadcast──▶ step N + 1
    others    step N ─▶ logits, dropped     tokens ◀──────┘       step N + 1

Tokens that rank 0's host does not know yet go from device to device, in front of the step that
reads them: nobody waits for them on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial

import torch

from engine.backends import CudaSettings, Progress
from engine.backends.cuda.assembly import Kernels, assemble
from engine.backends.cuda.backend import CUDABackend
from engine.backends.cuda.device import CUDADevice, Device
from engine.backends.cuda.gpu import DTYPE, gpu_kernels
from engine.backends.cuda.model import keeping, moved
from engine.backends.cuda.sizing import check_weights
from engine.backends.parallel.computer import Agree
from engine.backends.parallel.followers import Followers
from engine.backends.parallel.group import Group, leave
from engine.backends.parallel.messages import pack
from engine.backends.parallel.part import Part
from engine.backends.parallel.place import Place
from engine.batch import Batch
from engine.controls import Sampled, SampleRow
from engine.errors import UnfitBackend
from engine.models.config import ModelConfig
from engine.models.files import load_weights
from engine.models.weights import Cut, Weights


def on_own_gpu(
    place: Place, settings: CudaSettings, progress: Progress | None = None
) -> DeviceComputer:
    """The GPU of the rank at `place`: that of its number on this machine.

    Raises UnfitBackend if there are fewer.
    """
    there = torch.cuda.device_count()
    if place.local_rank >= there:
        ranks = f"{place.local_world} processes on this machine need a GPU each, and torch sees"
        remedy = "start fewer, or write engine.backend = cpu"
        raise UnfitBackend("backend", f"{ranks} {there}", remedy)
    device = CUDADevice(place.local_rank)
    kernels = partial(gpu_kernels, device, settings=settings)
    return DeviceComputer(device, kernels, settings, DTYPE, progress)


class DeviceComputer:
    """A GPU of this rank's own (the Computer protocol).

    kernels: made for a rank's decoder. progress: hears of the graphs that are captured.
    """

    def __init__(
        self,
        device: Device,
        kernels: Callable[[ModelConfig], Kernels],
        settings: CudaSettings,
        dtype: torch.dtype = torch.bfloat16,
        progress: Progress | None = None,
    ) -> None:
        self._device = device
        self._kernels = kernels
        self._settings = settings
        self._dtype = dtype
        self._progress = progress

    @property
    def torch_device(self) -> torch.device:
        return self._device.torch_device

    @property
    def threads(self) -> None:
        return None

    @property
    def agreement(self) -> dict[str, str]:
        settings = replace(self._settings, kv_memory_bytes=None, offload_memory_bytes=0)
        return {"settings of the GPU": repr(settings), "type of weights": str(self._dtype)}

    def load(self, part: Part, cut: Cut) -> Weights:
        path, whole = part.wanted.path, part.shard.whole
        where, dtype = self.torch_device, self._dtype
        check_weights(part.shard.config, dtype, self._device)
        with self._device.active():
            weights = moved(load_weights(path, whole, keeping(where, dtype), cut), where, dtype)
            self._device.release_cached()  # what the conversions took
        return weights

    def leader(
        self, part: Part, weights: Weights, followers: Followers, group: Group, agree: Agree
    ) -> DeviceLeader:
        return DeviceLeader(self._backend(part, weights, agree), group, followers)

    def follower(self, part: Part, weights: Weights, group: Group, agree: Agree) -> DeviceSteps:
        return DeviceSteps(self._backend(part, weights, agree), group, self.torch_device)

    def _backend(self, part: Part, weights: Weights, agree: Agree) -> CUDABackend:
        config = part.shard.config
        kernels, settings = self._kernels(config), self._settings
        return assemble(self._device, weights, config, kernels, settings, self._progress, agree)


class DeviceLeader:
    """The backend of rank 0's shard, whose every step the followers compute as well (Backend).

    A step that cannot be enqueued, on whatever rank, is the last: it and all that come after it
    raise GroupLost. What must not be computed is refused before anybody is told, and what is
    sampled concerns rank 0 alone: such faults are those of the step.
    """

    reads_arrays = True

    def __init__(self, backend: CUDABackend, group: Group, followers: Followers) -> None:
        self._backend = backend
        self._group = group
        self._followers = followers

    @property
    def total_blocks(self) -> int:
        return self._backend.total_blocks

    @property
    def host_blocks(self) -> int:
        return self._backend.host_blocks

    @property
    def move_seconds(self) -> float:
        return self._backend.move_seconds

    def submit(self, batch: Batch) -> int:
        self._backend.check(batch)
        with self._followers.computing(pack(batch, batch.token_ids)):
            if _in_flight(batch):
                newest = self._backend.newest
                assert newest is not None, "`check` has seen it"
                self._group.broadcast(newest)
            return self._backend.submit(batch)

    def sample(self, ticket: int, rows: Collection[SampleRow]) -> None:
        self._backend.sample(ticket, rows)

    def collect(self, ticket: int) -> Sampled:
        return self._backend.collect(ticket)

    def close(self) -> None:
        """End all ranks."""
        lost = self._followers.lost
        self._followers.stop()
        self._backend.close()
        if lost is None:
            leave()  # with somebody missing it might wait for him


class DeviceSteps:
    """A follower's part of each step (the Steps protocol)."""

    def __init__(self, backend: CUDABackend, group: Group, device: torch.device) -> None:
        self._backend = backend
        self._group = group
        self._device = device
        self._sampled = 0

    @property
    def blocks(self) -> int:
        return self._backend.total_blocks

    def compute(self, batch: Batch) -> None:
        if _in_flight(batch):
            tokens = torch.empty(self._sampled, dtype=torch.int64, device=self._device)
            self._group.broadcast(tokens)
            self._backend.assume(tokens)
        self._backend.forget(self._backend.submit(batch))
        self._sampled = len(batch.sample_rows)

    def close(self) -> None:
        self._backend.close()


def _in_flight(batch: Batch) -> bool:
    """Whether it has tokens that the step before has sampled, or will have."""
    return bool((batch.token_ids < 0).any())
