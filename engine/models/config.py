"""What a model is, in numbers. Needs neither torch nor the weights."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The shape of a decoder-only transformer.

    hidden: width of the residual stream. ffn: width inside the MLP.
    heads, kv_heads: query heads and the key/value heads they share in equal groups.
    context_length: positions the model was trained for. rope_base: theta of the rotary embedding.
    tied_head: the output head is the embedding matrix.
    """

    architecture: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    context_length: int
    rope_base: float
    norm_eps: float
    tied_head: bool

    @property
    def group(self) -> int:
        """Query heads that share one KV head."""
        return self.heads // self.kv_heads

    def kv_bytes_per_token(self, dtype_bytes: int) -> int:
        """Bytes that the keys and values of one token take over all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * dtype_bytes
