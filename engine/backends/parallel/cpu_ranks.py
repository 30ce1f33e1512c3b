"""Ranks that compute on CPUs, in torch."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch

from engine.backends.cpu import CPUBackend
from engine.backends.memory import auto_kv_bytes, fitting_blocks
from engine.backends.parallel.computer import Agree
from engine.backends.parallel.followers import Followers
from engine.backends.parallel.group import Group
from engine.backends.parallel.leader import LeaderRunner
from engine.backends.parallel.part import Part
from engine.backends.runners import ModelRunner, TorchRunner
from engine.batch import Batch
from engine.models.files import load_weights
from engine.models.weights import Cut, Weights


class CPUComputer:
    """float32 weights on the CPU (the Computer protocol)."""

    torch_device = torch.device("cpu")
    agreement: Mapping[str, str] = MappingProxyType({})

    @property
    def threads(self) -> int:
        return torch.get_num_threads()

    def load(self, part: Part, cut: Cut) -> Weights:
        if part.wanted.threads is not None:
            torch.set_num_threads(part.wanted.threads)
        return load_weights(part.wanted.path, part.shard.whole, cut=cut)

    def leader(
        self, part: Part, weights: Weights, followers: Followers, group: Group, agree: Agree
    ) -> CPUBackend:
        return CPUBackend(LeaderRunner(self.runner(part, weights, agree), followers))

    def follower(self, part: Part, weights: Weights, group: Group, agree: Agree) -> RunnerSteps:
        return RunnerSteps(self.runner(part, weights, agree))

    def runner(self, part: Part, weights: Weights, agree: Agree) -> ModelRunner:
        """Who computes this rank's part of each step."""
        wanted, config = part.wanted, part.shard.config
        memory = wanted.kv_memory_bytes
        if memory is None:
            memory = auto_kv_bytes() // part.place.local_world
        room = fitting_blocks(config, wanted.kv_dtype, memory, wanted.offload_memory_bytes)
        blocks, host_blocks = agree(*room)
        return TorchRunner(weights, config, blocks, wanted.kv_dtype, host_blocks)


class RunnerSteps:
    """Steps of a runner (the Steps protocol)."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner

    @property
    def blocks(self) -> int:
        return self._runner.cache.blocks

    def compute(self, batch: Batch) -> None:
        self._runner.cache.move(batch)
        self._runner.run(batch, batch.token_ids)

    def close(self) -> None:
        self._runner.close()
