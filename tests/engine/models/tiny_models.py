"""Small random models of every supported kind: as transformers has them, saved, and as GGUF twins.

The GGUF files are written the way llama.cpp's converter writes them (conversion/base.py, llama.py
and qwen.py there): q and k permuted for Llama and Mistral only, Llama 3's rope as a tensor.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFWriter
from transformers import (
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)
from transformers.models.auto import AutoModelForCausalLM

VOCAB, CONTEXT = 160, 128

SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 50_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
}
MIXED = {"layer_types": ["full_attention", "sliding_attention"], "use_sliding_window": True}

KINDS: dict[str, Callable[[], PreTrainedConfig]] = {
    "llama": lambda: LlamaConfig(**SHAPE),
    "llama tied": lambda: LlamaConfig(**SHAPE | {"tie_word_embeddings": True}),
    "llama biased": lambda: LlamaConfig(**SHAPE, attention_bias=True),
    "llama3 rope": lambda: LlamaConfig(**SHAPE, rope_parameters=LLAMA3),
    "linear rope": lambda: LlamaConfig(
        **SHAPE, rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}
    ),
    "mistral": lambda: MistralConfig(**SHAPE, sliding_window=20),
    "mistral everywhere": lambda: MistralConfig(**SHAPE, sliding_window=None),
    "qwen2": lambda: Qwen2Config(**SHAPE | {"tie_word_embeddings": True}),
    "qwen2 yarn": lambda: Qwen2Config(**SHAPE, rope_parameters=YARN),
    "qwen3": lambda: Qwen3Config(**SHAPE, head_dim=32),
    "qwen3 mixed windows": lambda: Qwen3Config(**SHAPE, head_dim=32, sliding_window=20, **MIXED),
}

# The name of a layer's tensor: in GGUF, in Hugging Face.
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"} | {
    f"model.layers.{i}.{hf}": f"blk.{i}.{gguf}"
    for i in range(SHAPE["num_hidden_layers"])
    for gguf, hf in _LAYER_NAMES.items()
}


def random_model(kind: str) -> PreTrainedModel:
    """A model of this kind, no weight of which is zero or one."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(KINDS[kind]()).eval().requires_grad_(False)
    for name, parameter in model.named_parameters():
        parameter.normal_(1.0 if "norm" in name else 0.0, 0.2)
    return model


def logits_of(model: PreTrainedModel, prompt: list[int]) -> np.ndarray:
    """What transformers computes, [tokens, vocab]."""
    with torch.inference_mode():
        return model(torch.tensor([prompt])).logits[0].float().numpy()


def write_twin(path: Path, model: PreTrainedModel) -> None:
    """Write the model as a GGUF file in float32."""
    config = model.config
    architecture = {"mistral": "llama"}.get(config.model_type, config.model_type)
    writer = GGUFWriter(path, architecture)
    _write_metadata(writer, config)
    for name, tensor in model.state_dict().items():
        stem, _, kind = name.rpartition(".")
        if stem == "lm_head" and config.tie_word_embeddings:
            continue
        values = tensor.numpy()
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
        if architecture == "llama" and (n := heads.get(stem.rpartition(".")[2])):
            values = _permuted(values, n)
        writer.add_tensor(f"{_NAMES[stem]}.{kind}", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_metadata(writer: GGUFWriter, config: PreTrainedConfig) -> None:
    rope = config.rope_parameters
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(rope["rope_theta"])
    if config.model_type == "qwen3":
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    if getattr(config, "sliding_window", None):
        writer.add_sliding_window(config.sliding_window)
    if rope["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", np.array(_llama3_divisors(config), np.float32))
    elif rope["rope_type"] != "default":
        writer.add_string(f"{writer.arch}.rope.scaling.type", rope["rope_type"])
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])


def _llama3_divisors(config: PreTrainedConfig) -> list[float]:
    """By what each frequency is divided: Llama 3.1's published rule, one frequency at a time."""
    rope = config.rope_parameters
    factor, context = rope["factor"], rope["original_max_position_embeddings"]
    divisors = []
    for i in range(0, config.head_dim, 2):
        wavelength = 2 * math.pi * rope["rope_theta"] ** (i / config.head_dim)
        if wavelength < context / rope["high_freq_factor"]:
            divisors.append(1.0)
        elif wavelength > context / rope["low_freq_factor"]:
            divisors.append(factor)
        else:
            span = rope["high_freq_factor"] - rope["low_freq_factor"]
            smooth = (context / wavelength - rope["low_freq_factor"]) / span
            divisors.append(1 / ((1 - smooth) / factor + smooth))
    return divisors


def _permuted(values: np.ndarray, heads: int) -> np.ndarray:
    """Rows i and i + head_dim / 2 of a head become neighbours, for llama.cpp's rope."""
    halves = values.reshape(heads, 2, -1, *values.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)
