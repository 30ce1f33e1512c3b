"""Reading GGUF files: what comes out, and what is said about files that cannot be served."""

import dataclasses
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType

from engine.errors import ModelError
from engine.models.config import LinearScaling, YarnScaling
from engine.models.gguf import load_weights, read_config
from tests.engine.models.tiny_llama import CONFIG, random_tensors, write_gguf

QUANTISABLE = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "MXFP4"]
YARN = {
    "llama.rope.scaling.type": "yarn",
    "llama.rope.scaling.factor": 4.0,
    "llama.rope.scaling.original_context_length": 64,
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tiny.gguf"


def refusal(path: Path) -> str:
    """What is said about the file, which must be named."""
    with pytest.raises(ModelError) as caught:
        load_weights(path, read_config(path))
    message = str(caught.value)
    assert str(path) in message
    return message


def test_the_configuration_is_read_back(path: Path):
    write_gguf(path, random_tensors())
    config = read_config(path)
    assert dataclasses.replace(config, norm_eps=CONFIG.norm_eps) == CONFIG
    assert config.norm_eps == pytest.approx(CONFIG.norm_eps)


def test_an_untied_head_is_loaded_for_itself(path: Path):
    untied = dataclasses.replace(CONFIG, tied_head=False)
    tensors = random_tensors(untied)
    write_gguf(path, tensors, config=untied)
    config = read_config(path)
    weights = load_weights(path, config)
    assert not config.tied_head
    assert torch.equal(weights.head, torch.from_numpy(tensors["output.weight"]))


def test_a_tied_head_is_the_embedding_held_once(path: Path):
    write_gguf(path, random_tensors())
    weights = load_weights(path, read_config(path))
    assert weights.head is weights.embedding


@pytest.mark.parametrize(
    ("key", "field", "value"),
    [
        ("llama.attention.head_count_kv", "kv_heads", CONFIG.heads),
        ("llama.rope.freq_base", "rope_base", 10_000.0),
        ("llama.rope.dimension_count", "head_dim", CONFIG.head_dim),
    ],
)
def test_keys_that_may_be_left_out_have_llama_cpps_defaults(
    path: Path, key: str, field: str, value: float
):
    config = dataclasses.replace(CONFIG, **{field: value})
    write_gguf(path, random_tensors(config), config=config, fields={key: None})
    assert getattr(read_config(path), field) == value


@pytest.mark.parametrize(
    ("fields", "scaling"),
    [
        ({}, None),
        ({"llama.rope.scaling.type": "none", "llama.rope.scaling.factor": 2.0}, None),
        ({"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 1.0}, None),
        (
            {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.0},
            LinearScaling(2.0),
        ),
        ({"llama.rope.scaling.factor": 2.0}, LinearScaling(2.0)),
        ({"llama.rope.scale_linear": 4.0}, LinearScaling(4.0)),
        (YARN, YarnScaling(4.0, 64, 0.1 * math.log(4) + 1)),
        (YARN | {"llama.rope.scaling.attn_factor": 0.5}, YarnScaling(4.0, 64, 0.56931472)),
        (YARN | {"llama.rope.scaling.yarn_attn_factor": 1.5}, YarnScaling(4.0, 64, 1.5)),
        (YARN | {"llama.rope.scaling.yarn_log_multiplier": 1.0}, YarnScaling(4.0, 64, 1.0)),
        (
            YARN
            | {
                "llama.rope.scaling.yarn_beta_fast": 16.0,
                "llama.rope.scaling.yarn_beta_slow": 2.0,
                "llama.rope.scaling.original_context_length": None,
            },
            YarnScaling(4.0, CONFIG.context_length, 0.1 * math.log(4) + 1, 16.0, 2.0),
        ),
    ],
)
def test_rope_scaling_is_read(path: Path, fields: dict[str, Any], scaling: Any):
    write_gguf(path, random_tensors(), fields=fields)
    found = read_config(path).rope_scaling
    assert type(found) is type(scaling)
    if scaling is not None:
        assert dataclasses.astuple(found) == pytest.approx(dataclasses.astuple(scaling))


def test_yarn_reaches_beyond_the_context_of_the_training(path: Path):
    write_gguf(path, random_tensors(), fields=YARN)
    assert read_config(path).context_length == 256


def test_a_sliding_window_is_every_layers(path: Path):
    write_gguf(path, random_tensors(), fields={"llama.attention.sliding_window": 7})
    assert read_config(path).layer_windows == (7, 7)


@pytest.mark.parametrize("kind", QUANTISABLE)
def test_every_weight_is_dequantised_into_its_place(path: Path, kind: str):
    stored = write_gguf(path, random_tensors(), kind=GGMLQuantizationType[kind])
    weights = load_weights(path, read_config(path))
    found = {"token_embd.weight": weights.embedding, "output_norm.weight": weights.norm}
    q, kv = CONFIG.heads * CONFIG.head_dim, CONFIG.kv_heads * CONFIG.head_dim
    for i, layer in enumerate(weights.layers):
        parts = {
            "attn_norm": layer.attn_norm,
            "attn_output": layer.attn_out,
            "ffn_norm": layer.ffn_norm,
            "ffn_down": layer.down,
            **dict(zip(["attn_q", "attn_k", "attn_v"], layer.qkv.split([q, kv, kv]), strict=True)),
            **dict(zip(["ffn_gate", "ffn_up"], layer.gate_up.split(CONFIG.ffn), strict=True)),
        }
        found |= {f"blk.{i}.{name}.weight": part for name, part in parts.items()}
    assert found.keys() == stored.keys()
    for name, expected in stored.items():
        assert found[name].dtype == torch.float32
        np.testing.assert_array_equal(found[name].numpy(), expected, err_msg=name)


def test_weights_do_not_depend_on_the_file_any_more(path: Path):
    tensors = random_tensors()
    write_gguf(path, tensors)
    weights = load_weights(path, read_config(path))
    path.write_bytes(b"\0" * path.stat().st_size)
    assert torch.equal(weights.embedding, torch.from_numpy(tensors["token_embd.weight"]))


def test_a_configuration_is_read_without_torch(path: Path):
    write_gguf(path, random_tensors())
    code = (
        "import sys; from engine.models.gguf import read_config; "
        f"read_config({str(path)!r}); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# ── refusals ──────────────────────────────────────────────────────────────────────────────────


def test_an_absent_file_is_refused(path: Path):
    assert "No such file" in refusal(path)


@pytest.mark.parametrize("content", [b"", b"GG", b"PK\x03\x04 and so on", b"\0" * 100])
def test_a_file_of_another_format_is_refused(path: Path, content: bytes):
    path.write_bytes(content)
    assert "not a GGUF file" in refusal(path)


@pytest.mark.parametrize("keep", [4, 8, 24, 100, 2_000, 10_000, -1])
def test_a_truncated_file_is_refused(path: Path, keep: int):
    write_gguf(path, random_tensors())
    path.write_bytes(path.read_bytes()[:keep])
    assert "truncated or damaged" in refusal(path)


def test_a_file_whose_array_reaches_beyond_its_end_is_refused(path: Path):
    write_gguf(path, random_tensors())
    content = path.read_bytes()
    count = CONFIG.vocab.to_bytes(8, "little") + len("token 0").to_bytes(8, "little")
    assert content.count(count) == 1
    path.write_bytes(content.replace(count, b"\xff" * 8 + count[8:]))
    assert "truncated or damaged" in refusal(path)


def test_another_architecture_is_refused(path: Path):
    write_gguf(path, random_tensors(), architecture="mamba")
    assert "'mamba' is not supported; supported: 'llama', 'qwen2', 'qwen3'" in refusal(path)


def test_a_missing_tensor_is_named_with_its_shape(path: Path):
    tensors = random_tensors()
    del tensors["blk.1.ffn_up.weight"]
    write_gguf(path, tensors)
    assert "blk.1.ffn_up.weight is missing (expected shape (96, 64))" in refusal(path)


def test_a_wrong_shape_is_named_beside_the_right_one(path: Path):
    tensors = random_tensors()
    tensors["blk.0.attn_v.weight"] = tensors["blk.0.attn_v.weight"][:16]
    write_gguf(path, tensors)
    assert "blk.0.attn_v.weight has shape (16, 64), expected (32, 64)" in refusal(path)


@pytest.mark.parametrize(
    "name", ["blk.1.attn_q.bias", "rope_factors_long.weight", "blk.0.ffn_gate_exps.weight"]
)
def test_a_tensor_that_would_be_left_out_is_refused(path: Path, name: str):
    write_gguf(path, random_tensors() | {name: np.ones(8, dtype=np.float32)})
    assert f"tensor {name} is of a kind that is not supported" in refusal(path)


def test_a_bias_on_some_of_queries_keys_and_values_is_refused(path: Path):
    bias = {"blk.0.attn_q.bias": np.ones(64, dtype=np.float32)}
    write_gguf(path, random_tensors() | bias)
    assert "tensor blk.0.attn_k.bias is missing (expected shape (32,))" in refusal(path)


def test_qwen2_without_its_bias_is_refused(path: Path):
    write_gguf(path, random_tensors(), architecture="qwen2")
    assert "tensor blk.0.attn_q.bias is missing (expected shape (64,))" in refusal(path)


def test_rope_divisors_for_another_head_size_are_refused(path: Path):
    write_gguf(path, random_tensors() | {"rope_freqs.weight": np.ones(4, dtype=np.float32)})
    assert "tensor rope_freqs.weight has shape (4,), expected (8,)" in refusal(path)


def test_rope_divisors_beside_another_scaling_are_refused(path: Path):
    divisors = {"rope_freqs.weight": np.ones(8, dtype=np.float32)}
    fields = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.0}
    write_gguf(path, random_tensors() | divisors, fields=fields)
    assert "rope_freqs.weight beside rope scaling 'linear'" in refusal(path)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"llama.block_count": None}, "llama.block_count is missing"),
        ({"llama.block_count": "two"}, "llama.block_count should be a positive number, not 'two'"),
        ({"llama.block_count": 0}, "llama.block_count should be a positive number, not 0"),
        ({"llama.attention.head_count_kv": [2, 2]}, "head_count_kv is a list"),
        ({"llama.attention.head_count_kv": 3}, "4 attention heads cannot share 3 KV heads"),
        ({"llama.rope.scaling.type": "longrope"}, "rope scaling 'longrope' is not supported"),
        ({"llama.rope.scaling.type": "yarn"}, "llama.rope.scaling.factor is missing"),
        (YARN | {"llama.rope.scaling.yarn_ext_factor": 0.5}, "yarn_ext_factor must be 1"),
        ({"llama.rope.scaling.alpha": 8.0}, "llama.rope.scaling.alpha is not supported"),
        ({"llama.attention.sliding_window_pattern": 2}, "sliding_window_pattern is not supported"),
        ({"llama.attention.sliding_window": 0}, "sliding_window should be a positive number"),
        ({"llama.rope.dimension_count": 8}, "rope.dimension_count 8 differs"),
        (
            {"llama.attention.key_length": 17, "llama.rope.dimension_count": 17},
            "an odd head size, 17,",
        ),
        ({"llama.attention.value_length": 32}, "attention.value_length 32 differs"),
        (
            {"llama.embedding_length": 48, "llama.rope.dimension_count": None},
            "has shape (160, 64), expected (160, 48)",
        ),
    ],
)
def test_metadata_that_cannot_be_served_is_named(path: Path, fields: dict[str, Any], said: str):
    write_gguf(path, random_tensors(), fields=fields)
    assert said in refusal(path)


def test_a_type_that_nothing_dequantises_is_named(path: Path):
    tensors = random_tensors()
    write_gguf(path, tensors | {"output_norm.weight": np.ones(CONFIG.hidden, dtype=np.int32)})
    assert "output_norm.weight has type I32, which cannot be dequantised" in refusal(path)
