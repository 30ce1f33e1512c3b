"""The model of a GGUF file in the formats that other engines read, weight for weight the same.

A Hugging Face folder (float32 safetensors, configuration, tokenizer), and a GGUF file in float16,
from which tools of other engines make formats of their own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from gguf import (
    GGUFReader,
    GGUFWriter,
    LlamaFileType,
    TokenType,
)
from gguf.quants import dequantize
from safetensors.numpy import save_file
from tokenizers import decoders, models

from app.text.gguf_metadata import TokenizerMetadata, load_metadata
from app.text.pre_tokenizers import PRE_TOKENIZERS
from engine.models.config import ModelConfig
from engine.models.files import read_config
from engine.models.gguf import Tensors
from engine.models.hugging_face import file_name

_WRITTEN_ANEW = ("general.architecture", "general.file_type", "general.quantization_version")
"""Metadata that the writer of a GGUF file makes itself, or that says how weights are kept."""


def write_folder(gguf: Path, folder: Path) -> None:
    """Write the model of `gguf` as a Hugging Face folder. Raises ModelError.

    Only what transformers calls a Llama without rope scaling is known here.
    """
    config, metadata = read_config(gguf), load_metadata(gguf)
    if config.architecture != "llama" or config.rope_scaling is not None:
        raise ValueError(f"{gguf}: only Llama models without rope scaling can be converted")
    folder.mkdir(parents=True, exist_ok=True)
    bpe, added = _tokenizer(metadata)
    bpe.save(str(folder / "tokenizer.json"))
    _write_json(folder / "tokenizer_config.json", _tokenizer_config(metadata, added))
    _write_json(folder / "generation_config.json", {"eos_token_id": list(metadata.eos_ids)})
    _write_json(folder / "config.json", _config(config, metadata))
    tensors = {file_name(name): values for name, values in Tensors(gguf, config).items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def write_float16(source: Path, target: Path) -> None:
    """Write the GGUF file `source` with its matrices in float16 and its vectors in float32."""
    reader = GGUFReader(source)
    writer = GGUFWriter(target, str(reader.fields["general.architecture"].contents()))
    writer.add_file_type(LlamaFileType.MOSTLY_F16)
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key in _WRITTEN_ANEW:
            continue
        kind, *item = field.types
        writer.add_key_value(key, field.contents(), kind, sub_type=item[0] if item else None)
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type)
        writer.add_tensor(
            tensor.name, values.astype(np.float32 if values.ndim == 1 else np.float16)
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _config(config: ModelConfig, metadata: TokenizerMetadata) -> Mapping[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": config.hidden,
        "intermediate_size": config.ffn,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab,
        "max_position_embeddings": config.context_length,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope_base,
        "hidden_act": "silu",
        "attention_bias": config.attention_bias,
        "tie_word_embeddings": config.tied_head,
        "bos_token_id": metadata.bos_id,
        "eos_token_id": metadata.eos_id,
        "torch_dtype": "float32",
    }


def _tokenizer(metadata: TokenizerMetadata) -> tuple[tokenizers.Tokenizer, Mapping[int, str]]:
    """The tokenizer, and the tokens that are found whole in a text, by id."""
    vocabulary = {text: token for token, text in enumerate(metadata.tokens)}
    merges = [
        (left, right) for left, _, right in (merge.partition(" ") for merge in metadata.merges)
    ]
    pre = PRE_TOKENIZERS[metadata.pre or ""]
    bpe = tokenizers.Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, ignore_merges=pre.whole_words)
    )
    bpe.pre_tokenizer = pre.pre_tokenizer()
    bpe.decoder = decoders.ByteLevel()
    special = {
        token: metadata.tokens[token]
        for token, kind in enumerate(metadata.token_types)
        if kind in (TokenType.CONTROL, TokenType.UNKNOWN)
    }
    bpe.add_special_tokens(list(special.values()))
    return bpe, special


def _tokenizer_config(metadata: TokenizerMetadata, special: Mapping[int, str]) -> Mapping[str, Any]:
    names = {"bos_token": metadata.bos_id, "eos_token": metadata.eos_id}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": metadata.context_length,
        "chat_template": metadata.chat_template,
        "additional_special_tokens": list(special.values()),
        **{name: metadata.tokens[token] for name, token in names.items() if token is not None},
    }


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
