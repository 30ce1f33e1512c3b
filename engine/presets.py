"""Models and GPUs by name: public figures, each with its source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from engine.capacity import Device, ModelShape


@dataclass(frozen=True, slots=True)
class DenseModel:
    """A dense decoder with a gated MLP (Llama, Mistral, Qwen2, Qwen3) in the words of config.json.

    The fields mean what they mean in engine.models.config.ModelConfig.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    context_length: int
    tied_head: bool = False
    attention_bias: bool = False
    qk_norm: bool = False

    @property
    def params(self) -> int:
        """How many parameters the model has."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = self.hidden * (2 * q + 2 * kv)
        if self.attention_bias:
            attention += q + 2 * kv
        if self.qk_norm:
            attention += 2 * self.head_dim
        layer = attention + 3 * self.hidden * self.ffn + 2 * self.hidden
        embeddings = self.vocab * self.hidden * (1 if self.tied_head else 2)
        return embeddings + self.layers * layer + self.hidden

    def shape(self, name: str) -> ModelShape:
        """What capacity depends on."""
        return ModelShape(
            name, self.layers, self.kv_heads, self.head_dim, self.params, self.context_length
        )


def _llama3(layers: int, hidden: int, heads: int, ffn: int, tied: bool = False) -> DenseModel:
    return DenseModel(layers, hidden, heads, 8, hidden // heads, ffn, 128_256, 131_072, tied)


def _qwen3(layers: int, hidden: int, heads: int, ffn: int, tied: bool = False) -> DenseModel:
    return DenseModel(
        layers, hidden, heads, 8, 128, ffn, 151_936, 40_960, tied_head=tied, qk_norm=True
    )


# The config.json of each at huggingface.co: meta-llama/Llama-2-7b-hf, Llama-3.1-8B, Llama-3.1-70B,
# Llama-3.2-1B, Llama-3.2-3B; mistralai/Mistral-7B-v0.3; Qwen/Qwen2.5-7B, Qwen2.5-32B,
# Qwen3-0.6B, Qwen3-4B, Qwen3-8B, Qwen3-14B, Qwen3-32B; HuggingFaceTB/SmolLM2-135M, SmolLM2-1.7B.
MODELS: Final = {
    "llama-2-7b": DenseModel(32, 4096, 32, 32, 128, 11_008, 32_000, 4096),
    "llama-3.1-8b": _llama3(32, 4096, 32, 14_336),
    "llama-3.1-70b": _llama3(80, 8192, 64, 28_672),
    "llama-3.2-1b": _llama3(16, 2048, 32, 8192, tied=True),
    "llama-3.2-3b": _llama3(28, 3072, 24, 8192, tied=True),
    "mistral-7b": DenseModel(32, 4096, 32, 8, 128, 14_336, 32_768, 32_768),
    "qwen2.5-7b": DenseModel(28, 3584, 28, 4, 128, 18_944, 152_064, 131_072, attention_bias=True),
    "qwen2.5-32b": DenseModel(64, 5120, 40, 8, 128, 27_648, 152_064, 131_072, attention_bias=True),
    "qwen3-0.6b": _qwen3(28, 1024, 16, 3072, tied=True),
    "qwen3-4b": _qwen3(36, 2560, 32, 9728, tied=True),
    "qwen3-8b": _qwen3(36, 4096, 32, 12_288),
    "qwen3-14b": _qwen3(40, 5120, 40, 17_408),
    "qwen3-32b": _qwen3(64, 5120, 64, 25_600),
    "smollm2-135m": DenseModel(30, 576, 9, 3, 64, 1536, 49_152, 8192, tied_head=True),
    "smollm2-1.7b": DenseModel(24, 2048, 32, 32, 64, 8192, 49_152, 8192, tied_head=True),
}


def _gpu(name: str, memory_mib: int, gb_s: float, bf16_tflops: float, source: str) -> Device:
    return Device(name, memory_mib << 20, gb_s * 1e9, bf16_tflops * 1e12, False, source)


_NVIDIA = "https://www.nvidia.com/en-us/data-center"
_ADA = "https://images.nvidia.com/aem-dam/Solutions/geforce/ada/nvidia-ada-gpu-architecture.pdf"
_CDNA3 = "https://www.amd.com/en/products/accelerators/instinct/mi300/mi300x.html"

# Bandwidth and bfloat16 operations are the vendor's. The latter are dense: half of what a page says
# "with sparsity". Memory is what the driver reports, which is less than the name says:
# https://github.com/modal-labs/modal-client/pull/2797, and nvidia-smi's tables in public logs.
GPUS: Final = {
    gpu.name: gpu
    for gpu in (
        _gpu("b200", 183_359, 8000, 2250, f"{_NVIDIA}/hgx/"),
        _gpu("h200", 143_771, 4800, 989.5, f"{_NVIDIA}/h200/"),
        _gpu("h100", 81_559, 3350, 989.5, f"{_NVIDIA}/h100/"),
        _gpu("a100", 81_920, 2039, 312, f"{_NVIDIA}/a100/"),
        _gpu("a100-40gb", 40_960, 1555, 312, f"{_NVIDIA}/a100/"),
        _gpu("l40s", 46_068, 864, 362, f"{_NVIDIA}/l40s/"),
        _gpu("l4", 23_034, 300, 121, f"{_NVIDIA}/l4/"),
        _gpu("a10", 23_028, 600, 125, f"{_NVIDIA}/products/a10-gpu/"),
        _gpu("rtx-4090", 24_564, 1008, 165.2, _ADA),
        _gpu("mi300x", 196_592, 5300, 1307.4, _CDNA3),
    )
}
