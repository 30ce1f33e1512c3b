"""`octavo capacity`: what it prints, what its JSON has, what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner
from gguf import GGUFWriter

from app.cli import main
from app.commands import capacity as command
from engine.capacity import Device

EXAMPLE = (
    "--layers 32 --kv-heads 8 --head-dim 128 --dtype float16"
    " --lengths 3900,420,2100,70 --reserve 4096"
)
CONFIG = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14_336,
    "max_position_embeddings": 131_072,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "tie_word_embeddings": False,
    "vocab_size": 128_256,
}


def run(arguments: str) -> click.testing.Result:
    return CliRunner().invoke(main, ["capacity", *arguments.split()])


def answer(arguments: str) -> Any:
    result = run(f"{arguments} --json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def cells(arguments: str) -> list[list[str]]:
    """The words of each line that is printed."""
    result = run(arguments)
    assert result.exit_code == 0, result.output
    return [line.split() for line in result.stdout.splitlines()]


def test_the_table_of_four_requests() -> None:
    lines = cells(EXAMPLE)
    assert ["3,900", "244", "488", "MiB", "487.5", "MiB", "512", "KiB"] in lines
    assert ["420", "27", "54", "MiB", "52.5", "MiB", "1.5", "MiB"] in lines
    assert ["2,100", "132", "264", "MiB", "262.5", "MiB", "1.5", "MiB"] in lines
    assert ["70", "5", "10", "MiB", "8.75", "MiB", "1.25", "MiB"] in lines
    assert ["6,490", "408", "816", "MiB", "811.25", "MiB", "4.75", "MiB"] in lines
    text = run(EXAMPLE).stdout
    assert "131,072 bytes a token in float16" in text
    assert "paged: 816 MiB, 4.75 MiB of them wasted (0.6%)" in text
    assert "reserving 4,096 tokens a request: 2 GiB," in text


def test_the_floor_of_a_llama_on_an_h200() -> None:
    text = run("--preset llama-3.1-8b --gpu h200").stdout
    assert "16.1 GB: 8.03 billion parameters in bfloat16" in text
    assert "3.3 ms a step to read the weights" in text
    assert "from about 206 sequences" in text


def test_the_keys_of_the_json_are_these() -> None:
    found = answer("--preset llama-3.1-8b --gpu h200 --lengths 100,200")
    assert {name: sorted(part) for name, part in found.items() if isinstance(part, dict)} == {
        "model": ["context_length", "head_dim", "kv_heads", "layers", "name", "params"],
        "total": ["allocated_bytes", "blocks", "live_bytes", "tail_bytes", "tokens"],
        "reserved": ["blocks", "bytes", "tokens", "wasted_bytes"],
        "device": ["bytes_per_s", "flops_per_s", "measured", "memory_bytes", "name", "source"],
        "weights": ["bytes", "dtype"],
        "decode": ["compute_bound_from", "floor_s", "live_floor_s"],
        "pool": ["blocks", "bytes", "fits", "reserving", "tokens"],
    }
    assert sorted(found["pool"]["fits"][0]) == ["blocks", "requests", "tokens"]
    assert sorted(found["requests"][0]) == sorted(found["total"])
    plain = {name: part for name, part in found.items() if not isinstance(part, dict | list)}
    assert plain == {
        "kv_dtype": "bfloat16",
        "block_tokens": 16,
        "bytes_per_token": 131_072,
        "bytes_per_block": 2_097_152,
        "maximum": 131_072,
    }


def test_a_gpu_keeps_nine_tenths_of_its_memory_for_weights_and_kv() -> None:
    found = answer("--preset llama-3.1-8b --gpu h200")
    usable = int(0.9 * found["device"]["memory_bytes"])
    assert found["pool"]["bytes"] == usable - found["weights"]["bytes"]


def test_weights_that_take_all_memory_leave_no_block() -> None:
    arguments = "--preset llama-3.1-70b --gpu h100"
    assert answer(arguments)["pool"]["blocks"] == 0
    assert "nothing: the weights take all of the memory" in run(arguments).stdout


def test_kv_memory_is_the_pool_and_memory_is_shared_with_the_weights() -> None:
    model = "--layers 2 --kv-heads 2 --head-dim 64 --params 1M"
    assert answer(f"{model} --kv-memory 2GiB")["pool"]["bytes"] == 2**31
    assert answer(f"{model} --memory 2GiB --weights int8")["pool"]["bytes"] == 2**31 - 10**6


@pytest.mark.parametrize("flag", ["--this-machine", "--gpu this"])
def test_this_machine_is_measured_computes_in_float32_and_says_it_estimates(
    flag: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    laptop = Device("this machine", 2**34, 25e9, 250e9, True, "measured with a ruler")
    monkeypatch.setattr(command, "this_machine", lambda: laptop)
    monkeypatch.setattr(command, "auto_kv_bytes", lambda: 2**30)
    found = answer(f"--preset smollm2-135m {flag}")
    assert (found["kv_dtype"], found["weights"]["dtype"]) == ("float32", "float32")
    assert found["pool"]["bytes"] == 2**30
    assert found["device"]["measured"] is True
    text = run(f"--preset smollm2-135m {flag}").stdout
    assert "16 GiB, 25 GB/s, 250 GFLOP/s" in text
    assert "estimates, measured with a ruler" in text


# ── models on disk ────────────────────────────────────────────────────────────────────────────


def config_json(folder: Path, **changes: object) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(CONFIG | changes))
    return path


def test_a_config_json_is_enough(tmp_path: Path) -> None:
    model = answer(f"--model {config_json(tmp_path)}")["model"]
    preset = answer("--preset llama-3.1-8b")["model"]
    assert model == preset | {"name": tmp_path.name}


def test_of_a_model_of_another_kind_the_parameters_are_unknown(tmp_path: Path) -> None:
    path = config_json(tmp_path, model_type="mixtral")
    assert answer(f"--model {path}")["model"]["params"] is None
    assert answer(f"--model {path} --params 46.7B")["model"]["params"] == 46_700_000_000
    assert "--params COUNT" in run(f"--model {path} --gpu h200").stdout


def test_a_model_that_also_sees_is_found_inside_its_configuration(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"text_config": CONFIG | {"head_dim": 256}}))
    assert answer(f"--model {path}")["model"]["head_dim"] == 256


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_layers": None}, "num_hidden_layers is missing"),
        ({"hidden_size": "4096"}, "hidden_size should be a positive integer, not '4096'"),
        ({"kv_lora_rank": 512}, "no arithmetic for latent attention (kv_lora_rank)"),
        (
            {"layer_types": ["full_attention", "linear_attention"]},
            "no arithmetic for linear_attention",
        ),
    ],
)
def test_a_config_json_that_says_too_little_or_means_another_cache_is_refused(
    tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    path = config_json(tmp_path, **changes)
    result = run(f"--model {path}")
    assert (result.exit_code, result.stderr) == (2, f"Error: --model: {path}: {message}\n")


@pytest.mark.parametrize("text", ["[]", "{", '{"text_config": 3}'])
def test_a_file_that_is_no_configuration_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    result = run(f"--model {path}")
    assert result.exit_code == 2
    assert result.stderr.startswith(f"Error: --model: {path}: ")


def test_a_gguf_file_is_read_as_serving_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_tiny_gguf(path)
    model = answer(f"--model {path}")["model"]
    assert model == {
        "name": "tiny",
        "layers": 1,
        "kv_heads": 2,
        "head_dim": 8,
        "params": 64 * 32 + 32 + 2 * 32 + 2 * 32 * 32 + 2 * 16 * 32 + 3 * 48 * 32,
        "context_length": 128,
    }


def write_tiny_gguf(path: Path) -> None:
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_embedding_length(32)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_feed_forward_length(48)
    writer.add_context_length(128)
    writer.add_vocab_size(64)
    writer.add_layer_norm_rms_eps(1e-5)
    shapes = {
        "token_embd": (64, 32),
        "output_norm": (32,),
        "blk.0.attn_norm": (32,),
        "blk.0.ffn_norm": (32,),
        "blk.0.attn_q": (32, 32),
        "blk.0.attn_k": (16, 32),
        "blk.0.attn_v": (16, 32),
        "blk.0.attn_output": (32, 32),
        "blk.0.ffn_gate": (48, 32),
        "blk.0.ffn_up": (48, 32),
        "blk.0.ffn_down": (32, 48),
    }
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", np.zeros(shape, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


# ── refusals ──────────────────────────────────────────────────────────────────────────────────

WHICH = "say which model, in one way: --preset, --model, or --layers with --kv-heads and --head-dim"
LENGTHS = "--lengths: expected numbers of tokens such as 3900,420,70; got "
SIZE = "expected a number of bytes, or a size such as 512MiB or 2GiB; got "


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", WHICH),
        ("--preset qwen3-8b --layers 3", WHICH),
        ("--layers 3", "--layers, --kv-heads and --head-dim go together"),
        (
            "--preset llama3.1-8b",
            "--preset: unknown preset llama3.1-8b; did you mean llama-3.1-8b?",
        ),
        ("--preset qwen3-8b --gpu h20", "--gpu: unknown GPU h20; did you mean h200?"),
        (
            "--preset qwen3-8b --dtype float61",
            "--dtype: unknown type float61; did you mean float16?",
        ),
        ("--preset qwen3-8b --weights in8", "--weights: unknown type in8; did you mean int8?"),
        ("--preset qwen3-8b --lengths 3,x", f"{LENGTHS}'3,x'"),
        ("--preset qwen3-8b --lengths 0", f"{LENGTHS}'0'"),
        ("--preset qwen3-8b --memory 3GB", f"--memory: {SIZE}'3GB'"),
        ("--preset qwen3-8b --kv-memory 0", f"--kv-memory: {SIZE}'0'"),
        (
            "--preset qwen3-8b --params -1",
            "--params: expected a count such as 8.03e9 or 8B; got '-1'",
        ),
        (
            "--preset qwen3-8b --params 1.2.3",
            "--params: expected a count such as 8.03e9 or 8B; got '1.2.3'",
        ),
        (
            "--preset qwen3-8b --memory 1GiB --kv-memory 1GiB",
            "--memory and --kv-memory exclude each other",
        ),
        (
            "--layers 1 --kv-heads 1 --head-dim 1 --memory 1GiB",
            "--memory: the weights count too: give --params, or use --kv-memory",
        ),
        (
            "--preset qwen3-8b --lengths 50000",
            "--lengths: 50000 tokens are more than the model's context, 40960",
        ),
        (
            "--preset qwen3-8b --lengths 5000 --reserve 4096",
            "--lengths: 5000 tokens are more than --reserve, 4096",
        ),
        ("--model missing.gguf", "missing.gguf: No such file or directory"),
    ],
)
def test_what_cannot_be_computed_is_one_message_and_exit_code_2(
    arguments: str, message: str
) -> None:
    result = run(arguments)
    assert (result.exit_code, result.stderr, result.stdout) == (2, f"Error: {message}\n", "")


def test_help_shows_examples() -> None:
    assert "octavo capacity --preset llama-3.1-8b --gpu h200" in run("--help").stdout


def test_torch_is_not_imported() -> None:
    script = (
        "import sys\n"
        "from app.cli import main\n"
        "main(['capacity', '--preset', 'smollm2-135m', '--this-machine'], standalone_mode=False)\n"
        "sys.exit('torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
