"""`octavo serve` with a Hugging Face folder: what a client reads is what transformers generates."""

import json
import signal
import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest
import torch
from rich.console import Console
from support.served import HANG_S, serving
from transformers import Qwen2Config, Qwen2ForCausalLM

from app.compose import compose
from app.config import load_config
from app.text.files import load_tokenizer
from engine.errors import ConfigurationError
from tests.app.text.tiny_tokenizers import train, write_folder

CPU = ["--set", "engine.backend=cpu", "--set", "engine.kv_memory=16MiB", "--set", "server.port=0"]
FLOAT32 = ["--set", "model.dtype=float32"]
NAME = "Tiny2.5-0.1B"


@pytest.fixture(scope="module")
def model() -> Qwen2ForCausalLM:
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=400,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
    )
    return Qwen2ForCausalLM(config).eval()


@pytest.fixture(scope="module")
def folder(model: Qwen2ForCausalLM, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / NAME
    model.save_pretrained(path)
    saved = json.loads((path / "config.json").read_bytes())
    return write_folder(path, train("byte-level"), config=saved)


def post(url: str, body: dict[str, Any]) -> dict[str, Any]:
    return httpx2.post(url, json=body, timeout=HANG_S).json()


def continuation(model: Qwen2ForCausalLM, ids: list[int], count: int) -> list[int]:
    """`count` greedy tokens after `ids`, by transformers."""
    with torch.inference_mode():
        for _ in range(count):
            ids = [*ids, int(model(torch.tensor([ids])).logits[0, -1].argmax())]
    return ids[-count:]


def test_a_folder_is_served_under_its_name(folder: Path, model: Qwen2ForCausalLM, tmp_path: Path):
    tokenizer = load_tokenizer(folder)
    with serving(tmp_path, *CPU, *FLOAT32, "--set", f"model.path={folder}") as server:
        url = server.ready()
        assert httpx2.get(url + "/v1/models", timeout=HANG_S).json()["data"][0]["id"] == NAME
        ids = post(url + "/tokenize", {"prompt": "The quick fox"})["tokens"]
        assert ids[0] == tokenizer.control["<s>"]
        greedy = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}
        body = {"model": NAME, "prompt": "The quick fox", **greedy}
        reply = post(url + "/v1/completions", body)
        assert reply["usage"]["completion_tokens"] == 12
        expected = tokenizer.decode(continuation(model, ids, 12))
        assert reply["choices"][0]["text"] == expected

        body = {"model": NAME, "messages": [{"role": "user", "content": "fox"}], **greedy}
        reply = post(url + "/v1/chat/completions", body)
        marks = [tokenizer.control[mark] for mark in ("<s>", "<|im_start|>", "<|im_end|>")]
        chat = [*marks[:2], *tokenizer.encode("fox"), marks[2]]
        expected = tokenizer.decode(continuation(model, chat, 12))
        assert reply["choices"][0]["message"]["content"] == expected


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_folder_that_lacks_a_file_is_one_message(folder: Path, tmp_path: Path, name: str):
    for file in folder.iterdir():
        if file.name != name:
            (tmp_path / file.name).write_bytes(file.read_bytes())
    with serving(tmp_path, *CPU, "--set", "model.path=.") as server:
        assert server.wait() == 2
        message = "".join(line for line in server.lines if '"loading: ' not in line)
    assert message.startswith("Error: ")
    assert name in message
    assert "Traceback" not in message


def test_the_format_of_the_kv_cache_decides_how_many_blocks_there_are(folder: Path, tmp_path: Path):
    token = 2 * 2 * 2 * (16 + 4)  # K and V, layers, heads, vector and scale
    wanted = {"engine.kv_dtype": "int8", "model.path": folder}
    with serving(tmp_path, *CPU, *(f"--set={key}={value}" for key, value in wanted.items())) as one:
        url = one.ready()
        body = {"model": NAME, "prompt": "The quick fox", "max_tokens": 5, "ignore_eos": True}
        reply = post(url + "/v1/completions", body)
        assert reply["usage"]["completion_tokens"] == 5
        one.process.send_signal(signal.SIGTERM)
        assert one.wait() == 0
        (line,) = [json.loads(line) for line in one.lines if "ready to serve" in line]
    assert (line["kv_dtype"], line["kv_blocks"]) == ("int8", 2**24 // (16 * token))


def test_memory_for_less_than_one_block_is_a_message_that_names_the_knob(folder: Path):
    wanted = {
        "engine.backend": "cpu",
        "engine.kv_memory": 2559,
        "engine.kv_dtype": "int8",
        "model.path": folder,
    }
    config = load_config(overrides=[f"{key}={value}" for key, value in wanted.items()])
    with pytest.raises(ConfigurationError) as caught:
        compose(config, Console(stderr=True))
    says = "2559 bytes do not hold one block of this model, 2560 bytes in int8"
    assert str(caught.value) == f"engine.kv_memory: {says}"


@pytest.mark.parametrize("backend", ["auto", "cpu", "simulated"])
def test_what_only_a_gpu_needs_is_not_imported_without_one(
    folder: Path, tmp_path: Path, backend: str
):
    for name in ("flashinfer", "triton"):  # so that they are there, whatever is installed
        (tmp_path / f"{name}.py").touch()
    start = "import sys; sys.path.insert(0, sys.argv.pop(1)); from app.cli import main; main()"
    # Says on stderr which modules are imported.
    program = [sys.executable, "-X", "importtime", "-c", start, tmp_path]
    options = ["--set", f"engine.backend={backend}", "--set", f"model.path={folder}"]
    with serving(tmp_path, *CPU, *FLOAT32, *options, program=program) as one:
        body = {"model": NAME, "prompt": "The quick fox", "max_tokens": 3, "ignore_eos": True}
        reply = post(one.ready() + "/v1/completions", body)
        assert reply["usage"]["completion_tokens"] == 3
        one.process.send_signal(signal.SIGTERM)
        assert one.wait() == 0
    modules = {line.split("|")[-1].strip() for line in one.lines if "import time:" in line}
    assert "engine.loop" in modules
    packages = {module.split(".")[0] for module in modules}
    assert packages.isdisjoint({"flashinfer", "triton"})
    assert not any(module.startswith("engine.backends.cuda") for module in modules)
