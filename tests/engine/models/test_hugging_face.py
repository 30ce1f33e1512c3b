"""Reading Hugging Face folders: what comes out, and what is said of those that cannot be served."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.errors import ModelError
from engine.models.config import LinearScaling, Llama3Scaling, YarnScaling, yarn_magnitude
from engine.models.files import load_weights, read_config
from tests.engine.models.tiny_models import random_model

INDEX = "model.safetensors.index.json"
SLIDING, FULL = "sliding_attention", "full_attention"


@pytest.fixture(scope="session")
def originals(tmp_path_factory: pytest.TempPathFactory):
    """Folders as transformers saves them, by kind of model; not to be changed."""
    folders: dict[str, Path] = {}

    def folder(kind: str) -> Path:
        if kind not in folders:
            folders[kind] = tmp_path_factory.mktemp("original")
            random_model(kind).save_pretrained(folders[kind])
        return folders[kind]

    return folder


@pytest.fixture
def folder(originals, tmp_path: Path):
    """Makes a folder of this kind of model with changes to its config.json; None takes out."""

    def make(kind: str = "llama", **changes: Any) -> Path:
        for file in originals(kind).iterdir():
            (tmp_path / file.name).write_bytes(file.read_bytes())
        values = json.loads((tmp_path / "config.json").read_bytes())
        for key, value in changes.items():
            values.pop(key, None)
            if value is not None:
                values[key] = value
        (tmp_path / "config.json").write_text(json.dumps(values))
        return tmp_path

    return make


def refusal(folder: Path) -> str:
    """What is said about the folder, which must be named."""
    with pytest.raises(ModelError) as caught:
        load_weights(folder, read_config(folder))
    message = str(caught.value)
    assert str(folder) in message
    return message


def rewrite(folder: Path, change: dict[str, torch.Tensor | None]) -> None:
    """Replace tensors of model.safetensors; None takes one out."""
    path = folder / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(path).items()} | change
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, path)


def shard(folder: Path) -> dict[str, str]:
    """Split model.safetensors into two shards with an index; returns which file holds what."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    files = {name: f"model-{i % 2 + 1}-of-2.safetensors" for i, name in enumerate(tensors)}
    for file in set(files.values()):
        save_file(
            {name: tensors[name].clone() for name in tensors if files[name] == file}, folder / file
        )
    path.unlink()
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": files}))
    return files


# ── configuration ─────────────────────────────────────────────────────────────────────────────


def test_the_numbers_are_read(folder):
    config = read_config(folder())
    assert (config.architecture, config.layers, config.hidden, config.ffn) == ("llama", 2, 64, 96)
    assert (config.heads, config.kv_heads, config.head_dim, config.vocab) == (4, 2, 16, 160)
    assert (config.context_length, config.norm_eps, config.rope_base) == (128, 1e-5, 10_000.0)
    assert not config.tied_head
    assert not config.attention_bias
    assert not config.qk_norm
    assert config.layer_windows == (None, None)


@pytest.mark.parametrize(
    ("kind", "attention_bias", "output_bias", "qk_norm"),
    [
        ("llama", False, False, False),
        ("llama biased", True, True, False),
        ("mistral", False, False, False),
        ("qwen2", True, False, False),
        ("qwen3", False, False, True),
    ],
)
def test_architectures_differ_in_data(
    folder, kind: str, attention_bias: bool, output_bias: bool, qk_norm: bool
):
    config = read_config(folder(kind))
    found = config.attention_bias, config.output_bias, config.qk_norm
    assert found == (attention_bias, output_bias, qk_norm)


def test_keys_that_may_be_left_out_have_transformers_defaults(folder):
    changes = dict.fromkeys(
        ["head_dim", "rope_parameters", "tie_word_embeddings", "hidden_act", "attention_bias"]
    )
    config = read_config(folder(**changes))
    assert (config.head_dim, config.rope_base, config.tied_head) == (16, 10_000.0, False)


@pytest.mark.parametrize(
    ("kind", "changes", "windows"),
    [
        ("mistral", {}, (20, 20)),
        ("mistral", {"sliding_window": None}, (4096, 4096)),
        ("mistral everywhere", {}, (None, None)),
        ("mistral", {"layer_types": [SLIDING, FULL]}, (20, None)),
        ("llama", {"sliding_window": 20}, (None, None)),
        ("qwen3", {"sliding_window": 20}, (None, None)),
        ("qwen3 mixed windows", {}, (None, 20)),
        ("qwen3 mixed windows", {"layer_types": None, "max_window_layers": 1}, (None, 20)),
        ("qwen3 mixed windows", {"layer_types": None, "max_window_layers": 0}, (20, 20)),
        ("qwen3 mixed windows", {"layer_types": None, "max_window_layers": 9}, (None, None)),
    ],
)
def test_windows_are_read_layer_by_layer(
    folder, kind: str, changes: dict[str, Any], windows: tuple[int | None, ...]
):
    assert read_config(folder(kind, **changes)).layer_windows == windows


LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"factor": 4.0, "original_max_position_embeddings": 64}


@pytest.mark.parametrize(
    ("changes", "scaling"),
    [
        ({"rope_scaling": {"type": "linear", "factor": 2}}, LinearScaling(2)),
        ({"rope_scaling": {"rope_type": "default"}}, None),
        (
            {
                "rope_scaling": {
                    "rope_type": "llama3",
                    "original_max_position_embeddings": 32,
                    **LLAMA3,
                }
            },
            Llama3Scaling(8.0, 1.0, 4.0, 32),
        ),
        ({"rope_parameters": {"rope_type": "llama3", **LLAMA3}}, Llama3Scaling(8.0, 1.0, 4.0, 128)),
        ({"rope_scaling": {"type": "yarn", **YARN}}, YarnScaling(4.0, 64, yarn_magnitude(4))),
        (
            {"rope_scaling": {"type": "yarn", **YARN, "mscale": 1.0, "mscale_all_dim": 1.0}},
            YarnScaling(4.0, 64, 1.0),
        ),
        (
            {"rope_parameters": {"rope_type": "yarn", **YARN, "attention_factor": 0.9}},
            YarnScaling(4.0, 64, 0.9),
        ),
        (
            {
                "rope_parameters": {"rope_type": "yarn", "factor": None},
                "original_max_position_embeddings": 32,
            },
            YarnScaling(4.0, 32, yarn_magnitude(4)),
        ),
    ],
)
def test_rope_scaling_is_read_in_both_spellings(folder, changes: dict[str, Any], scaling: Any):
    config = read_config(folder(**{"rope_parameters": None, "rope_theta": 500.0} | changes))
    assert config.rope_scaling == scaling
    assert config.rope_base == 500.0


def test_theta_among_the_rope_parameters_comes_first(folder):
    parameters = {"rope_type": "default", "rope_theta": 7000.0}
    assert read_config(folder(rope_parameters=parameters, rope_theta=500.0)).rope_base == 7000.0


def test_yarn_reaches_beyond_the_context_of_the_training(folder):
    assert read_config(folder(rope_parameters={"rope_type": "yarn", **YARN})).context_length == 256


# ── weights ───────────────────────────────────────────────────────────────────────────────────


def assert_equal_weights(found: Path, expected: Path) -> None:
    ours, theirs = (load_weights(path, read_config(path)) for path in (found, expected))
    assert torch.equal(ours.embedding, theirs.embedding)
    assert torch.equal(ours.head, theirs.head)
    for a, b in zip(ours.layers, theirs.layers, strict=True):
        assert torch.equal(a.qkv, b.qkv)
        assert torch.equal(a.down, b.down)


def test_shards_are_one_model(folder, originals):
    sharded = folder()
    shard(sharded)
    assert_equal_weights(sharded, originals("llama"))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_widened(folder, originals, dtype: torch.dtype):
    path = folder()
    tensors = load_file(originals("llama") / "model.safetensors")
    save_file({n: t.to(dtype) for n, t in tensors.items()}, path / "model.safetensors")
    weights = load_weights(path, read_config(path))
    assert weights.embedding.dtype == weights.layers[1].qkv.dtype == torch.float32
    expected = tensors["model.embed_tokens.weight"].to(dtype).float()
    assert torch.equal(weights.embedding, expected)


def test_a_tied_head_is_the_embedding_held_once(folder):
    path = folder("llama tied")
    rewrite(path, {"lm_head.weight": torch.zeros(160, 64)})
    weights = load_weights(path, read_config(path))
    assert weights.head is weights.embedding
    assert weights.head.any()


def test_tables_that_old_checkpoints_carry_are_left_aside(folder, originals):
    path = folder()
    rewrite(path, {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)})
    assert_equal_weights(path, originals("llama"))


def test_weights_do_not_depend_on_the_file_any_more(folder, originals):
    path = folder()
    weights = load_weights(path, read_config(path))
    file = path / "model.safetensors"
    file.write_bytes(b"\0" * file.stat().st_size)
    expected = load_file(originals("llama") / "model.safetensors")
    assert torch.equal(weights.norm, expected["model.norm.weight"])


def test_a_configuration_is_read_without_torch(folder):
    code = (
        "import sys; from engine.models.files import read_config; "
        f"read_config({str(folder())!r}); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# ── refusals ──────────────────────────────────────────────────────────────────────────────────


def test_a_folder_without_a_configuration_is_refused(tmp_path: Path):
    assert "config.json: No such file" in refusal(tmp_path)


@pytest.mark.parametrize("content", ["", "{", "[]", "\xff"])
def test_a_configuration_that_is_no_json_object_is_refused(tmp_path: Path, content: str):
    (tmp_path / "config.json").write_bytes(content.encode("latin-1"))
    assert "config.json: " in refusal(tmp_path)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"model_type": "gemma3"},
            "model_type 'gemma3' is not supported; supported: 'llama', 'mis",
        ),
        ({"model_type": None}, "model_type '' is not supported"),
        ({"hidden_size": None}, "config.json: hidden_size is missing"),
        ({"hidden_size": "wide"}, "hidden_size should be a positive number, not 'wide'"),
        ({"num_hidden_layers": 0}, "num_hidden_layers should be a positive number, not 0"),
        ({"num_key_value_heads": 3}, "4 attention heads cannot share 3 KV heads"),
        ({"head_dim": 17}, "an odd head size, 17,"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings should be true or false, not 'no'"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
        ({"mlp_bias": True}, "mlp_bias is not supported"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config (gptq)"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_type 'dynamic' is not"),
        ({"rope_scaling": {"type": "linear"}}, "config.json: rope_scaling: factor is missing"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor 0.5 is not"),
        ({"rope_parameters": {"full_attention": {}}}, "rope_parameters of this form"),
        ({"vocab_size": 161}, "embed_tokens.weight has shape (160, 64), expected (161, 64)"),
        (
            {"tie_word_embeddings": True, "vocab_size": 150},
            "has shape (160, 64), expected (150, 64)",
        ),
    ],
)
def test_a_configuration_that_cannot_be_served_is_named(folder, changes: dict[str, Any], said: str):
    assert said in refusal(folder(**changes))


@pytest.mark.parametrize("layer_types", [[SLIDING], "all", [SLIDING, "chunked_attention"]])
def test_layer_types_that_are_not_known_are_refused(folder, layer_types: Any):
    assert "layer_types" in refusal(folder("mistral", layer_types=layer_types))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model.norm.weight": None}, "tensor model.norm.weight is missing (expected shape (64,))"),
        ({"lm_head.weight": None}, "tensor lm_head.weight is missing"),
        (
            {"model.layers.1.mlp.up_proj.weight": torch.ones(64, 96)},
            "model.layers.1.mlp.up_proj.weight has shape (64, 96), expected (96, 64)",
        ),
        (
            {"model.layers.0.self_attn.q_proj.bias": torch.ones(64)},
            "model.layers.0.self_attn.q_proj.bias is of a kind that is not supported",
        ),
        (
            {"model.norm.weight": torch.ones(64, dtype=torch.float64)},
            "model.norm.weight has type F64, which is not supported; supported: F32, F16, BF16",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_named(folder, change: dict[str, Any], said: str):
    path = folder()
    rewrite(path, change)
    assert said in refusal(path)


def test_a_folder_without_weights_is_refused(folder):
    path = folder()
    (path / "model.safetensors").unlink()
    assert "model.safetensors: no such file" in refusal(path)


@pytest.mark.parametrize("keep", [0, 4, 100, -1])
def test_a_truncated_file_is_refused(folder, keep: int):
    file = folder() / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    assert "truncated or damaged" in refusal(file.parent)


def test_a_missing_shard_is_named(folder):
    path = folder()
    file = min(shard(path).values())
    (path / file).unlink()
    assert f"{file}: no such file" in refusal(path)


def test_a_shard_without_a_tensor_that_the_index_promises_is_named(folder):
    path = folder()
    files = shard(path)
    name = "model.norm.weight"
    tensors = load_file(path / files[name])
    save_file({n: t.clone() for n, t in tensors.items() if n != name}, path / files[name])
    assert f"{files[name]}: tensor {name} is missing" in refusal(path)


@pytest.mark.parametrize(
    "index", ["", "{}", '{"weight_map": []}', '{"weight_map": {"a": "../b.safetensors"}}']
)
def test_an_index_that_is_none_is_refused(folder, index: str):
    path = folder()
    (path / INDEX).write_text(index)
    assert f"{INDEX}: not an index of shards" in refusal(path)
