"""One rank's part of a model on disk: its shape, the blocks that fit beside it, its weights."""

from __future__ import annotations

from importlib.metadata import version

from torch import Tensor

from engine.backends.memory import auto_kv_bytes, fitting_blocks
from engine.backends.parallel.matrices import Collectives, joined
from engine.backends.parallel.place import Place
from engine.backends.parallel.shards import Fingerprint, Shard
from engine.backends.parallel.wanted import Wanted
from engine.backends.runners import TorchRunner
from engine.models.files import load_weights, read_config
from engine.models.weights import Weights


class Part:
    """What the rank at `place` is to compute. Weights are loaded later.

    Raises ModelError for a model that cannot be served, UnfitShards for one that cannot be dealt to
    so many, UnfitMemory as the CPU backend does.
    """

    def __init__(self, place: Place, wanted: Wanted) -> None:
        self._wanted = wanted
        self.shard = Shard(read_config(wanted.path), place.rank, place.world)
        memory = wanted.kv_memory_bytes
        if memory is None:
            memory = auto_kv_bytes() // place.local_world
        self.blocks, self.host_blocks = fitting_blocks(
            self.shard.config, wanted.kv_dtype, memory, wanted.offload_memory_bytes
        )

    @property
    def agreement(self) -> dict[str, str]:
        """What has to be the same on all ranks, by what it is called."""
        return {
            "version of Octavo": version("octavo"),
            "model": repr(self.shard.whole),
            "KV format": self._wanted.kv_dtype,
        }

    def load(self, group: Collectives) -> tuple[Weights, str]:
        """Load the shard's weights, one tensor after the other; and what tells models apart."""
        fingerprint = Fingerprint()

        def cut(name: str, tensor: Tensor) -> Tensor:
            fingerprint.add(name, tensor)
            return self.shard.cut(name, tensor)

        weights = load_weights(self._wanted.path, self.shard.whole, cut=cut)
        return joined(weights, self.shard, group), str(fingerprint)

    def runner(self, weights: Weights, blocks: int, host_blocks: int) -> TorchRunner:
        """Who computes this rank's part of each step."""
        config, kv_dtype = self.shard.config, self._wanted.kv_dtype
        return TorchRunner(weights, config, blocks, kv_dtype, host_blocks)
