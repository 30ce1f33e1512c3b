"""What a rank has of a model, cut tensor by tensor while it is loaded.

    attn_q, attn_k, attn_v    rows       of its attention heads, biases as well
    attn_output               columns    of the same heads; the bias whole
    ffn_gate, ffn_up          rows       of its part of the MLP
    ffn_down                  columns    of the same part
    output                    rows       of its part of the vocabulary
    embedding and norms       whole

Where there are fewer KV heads than ranks, neighbours have the same one.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from engine.errors import UnfitShards
from engine.models.config import ModelConfig

SAMPLE = 64
"""Elements of each tensor that tell models apart."""


@dataclass(frozen=True, slots=True)
class Shard:
    """The part of the model `whole` that rank `rank` of `world` has.

    Raises UnfitShards for a model that cannot be dealt to so many.
    """

    whole: ModelConfig
    rank: int
    world: int

    def __post_init__(self) -> None:
        if why := _unfit(self.whole, self.world):
            most = range(1, self.whole.heads + 1)
            fitting = ", ".join(str(world) for world in most if not _unfit(self.whole, world))
            raise UnfitShards(f"{why} of {self.world} ranks; with this model it may be {fitting}")

    @property
    def config(self) -> ModelConfig:
        """The decoder that this rank computes. Its vocabulary is whole: logits are gathered."""
        whole = self.whole
        return replace(
            whole,
            heads=whole.heads // self.world,
            kv_heads=max(1, whole.kv_heads // self.world),
            ffn=whole.ffn // self.world,
        )

    def cut(self, name: str, tensor: Tensor) -> Tensor:
        """What is kept of a tensor, in memory of its own; names as in `engine.models.shapes`."""
        part, kind = name.split(".")[-2:]
        match part, kind:
            case ("attn_q", _):
                return self._rows(tensor, self.rank, self.world)
            case ("attn_k" | "attn_v", _):
                return self._rows(tensor, *self._kv_share())
            case ("ffn_gate" | "ffn_up", _):
                return self._rows(tensor, self.rank, self.world)
            case ("attn_output" | "ffn_down", "weight"):
                return tensor.chunk(self.world, dim=1)[self.rank].clone()
            case ("output", _):
                return self.vocabulary(tensor).clone()
        return tensor

    def vocabulary(self, head: Tensor) -> Tensor:
        """This rank's rows of the head: as many on each rank, the last of them may be zeros.

        A view of `head`, where that is possible.
        """
        count = -(-self.whole.vocab // self.world)
        rows = head[self.rank * count : (self.rank + 1) * count]
        missing = count - len(rows)
        return torch.cat((rows, rows.new_zeros(missing, rows.shape[1]))) if missing else rows

    def _kv_share(self) -> tuple[int, int]:
        """Which part of the KV heads, of how many."""
        parts = min(self.world, self.whole.kv_heads)
        return self.rank * parts // self.world, parts

    @staticmethod
    def _rows(tensor: Tensor, part: int, parts: int) -> Tensor:
        count = len(tensor) // parts
        return tensor[part * count : (part + 1) * count].clone()


def _unfit(config: ModelConfig, world: int) -> str:
    """Why this model cannot be dealt to so many ranks; empty if it can."""
    kv_heads = config.kv_heads
    if config.heads % world:
        return f"{config.heads} attention heads cannot be dealt evenly to each"
    if kv_heads % world and world % kv_heads:
        return f"{kv_heads} KV heads can neither be dealt nor repeated evenly for each"
    if config.ffn % world:
        return f"an MLP of width {config.ffn} cannot be cut evenly for each"
    return ""


class Fingerprint:
    """Tells models of one shape apart by a few elements of every tensor.

    All ranks see the same tensors in the same order while they load.
    """

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def add(self, name: str, tensor: Tensor) -> None:
        """Take in a tensor, whole."""
        flat = tensor.flatten()
        sample = flat[:: max(1, len(flat) // SAMPLE)]
        self._hash.update(f"{name} {tuple(tensor.shape)} ".encode())
        self._hash.update(sample.float().numpy().tobytes())

    def __str__(self) -> str:
        return self._hash.hexdigest()
