"""`octavo serve` with a Hugging Face folder: what a client reads is what transformers generates."""

import json
from pathlib import Path

import httpx2
import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from app.text.files import load_tokenizer
from tests.app.test_serve import serving
from tests.app.text.tiny_tokenizers import train, write_folder

CPU = ["--set", "engine.backend=cpu", "--set", "engine.kv_memory=16MiB", "--set", "server.port=0"]
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


def continuation(model: Qwen2ForCausalLM, ids: list[int], count: int) -> list[int]:
    """`count` greedy tokens after `ids`, by transformers."""
    with torch.inference_mode():
        for _ in range(count):
            ids = [*ids, int(model(torch.tensor([ids])).logits[0, -1].argmax())]
    return ids[-count:]


def test_a_folder_is_served_under_its_name(folder: Path, model: Qwen2ForCausalLM, tmp_path: Path):
    tokenizer = load_tokenizer(folder)
    with serving(tmp_path, *CPU, "--set", f"model.path={folder}") as server:
        url = server.ready()
        assert httpx2.get(url + "/v1/models").json()["data"][0]["id"] == NAME
        ids = httpx2.post(url + "/tokenize", json={"prompt": "The quick fox"}).json()["tokens"]
        assert ids[0] == tokenizer.control["<s>"]
        greedy = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}
        body = {"model": NAME, "prompt": "The quick fox", **greedy}
        reply = httpx2.post(url + "/v1/completions", json=body).json()
        assert reply["usage"]["completion_tokens"] == 12
        expected = tokenizer.decode(continuation(model, ids, 12))
        assert reply["choices"][0]["text"] == expected

        body = {"model": NAME, "messages": [{"role": "user", "content": "fox"}], **greedy}
        reply = httpx2.post(url + "/v1/chat/completions", json=body).json()
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
        message = "".join(server.lines)
    assert message.startswith("Error: ")
    assert name in message
    assert "Traceback" not in message
