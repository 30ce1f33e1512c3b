"""One model in the formats of other engines: the same weights, the same tokens."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader, GGUFWriter
from safetensors.numpy import load_file

from app.text.files import load_tokenizer
from engine.models import gguf, hugging_face
from loadtest.peers.model_files import ModelFiles
from loadtest.peers.model_folder import write_float16, write_folder

LETTERS = "abcdefghijklmnopqrstuvwxyz"
TOKENS = ["<unk>", "<s>", "</s>", *LETTERS, "Ġ", "ab", "abc"]
HIDDEN, HEADS, KV_HEADS, FFN = 32, 4, 2, 48


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A random Llama of one layer, as llama.cpp's converter writes one."""
    path = tmp_path / "tiny.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(5000.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_types([2, 3, 3] + [1] * (len(TOKENS) - 3))
    writer.add_token_merges(["a b", "ab c"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template("{{ messages[0].content }}")
    rng = np.random.default_rng(0)
    kv = KV_HEADS * HIDDEN // HEADS
    shapes = {
        "token_embd": (len(TOKENS), HIDDEN),
        "output_norm": (HIDDEN,),
        "blk.0.attn_norm": (HIDDEN,),
        "blk.0.attn_q": (HIDDEN, HIDDEN),
        "blk.0.attn_k": (kv, HIDDEN),
        "blk.0.attn_v": (kv, HIDDEN),
        "blk.0.attn_output": (HIDDEN, HIDDEN),
        "blk.0.ffn_norm": (HIDDEN,),
        "blk.0.ffn_gate": (FFN, HIDDEN),
        "blk.0.ffn_up": (FFN, HIDDEN),
        "blk.0.ffn_down": (HIDDEN, FFN),
    }
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", rng.normal(size=shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_the_folder_is_the_same_model(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    write_folder(model, folder)
    config, ours = hugging_face.read_config(folder), gguf.read_config(model)
    assert config == ours
    saved = load_file(folder / "model.safetensors")
    for name, values in gguf.Tensors(model, ours).items():
        np.testing.assert_array_equal(saved[hugging_face.file_name(name)], values)


def test_the_folder_cuts_text_into_the_same_tokens(model: Path, tmp_path: Path) -> None:
    write_folder(model, tmp_path / "folder")
    theirs, ours = load_tokenizer(tmp_path / "folder"), load_tokenizer(model)
    assert theirs.encode("abc ba zab") == ours.encode("abc ba zab")
    assert theirs.eos_ids == ours.eos_ids


def test_float16_keeps_the_metadata_and_rounds_matrices_only(model: Path, tmp_path: Path) -> None:
    write_float16(model, tmp_path / "half.gguf")
    half, whole = GGUFReader(tmp_path / "half.gguf"), GGUFReader(model)
    assert set(whole.fields) - set(half.fields) == set()
    tokens = half.fields["tokenizer.ggml.tokens"].contents()
    assert tokens == TOKENS
    originals = {tensor.name: tensor.data for tensor in whole.tensors}
    for tensor in half.tensors:
        exact = originals[tensor.name]
        assert tensor.data.dtype == (np.float32 if exact.ndim == 1 else np.float16)
        np.testing.assert_array_equal(tensor.data, exact.astype(tensor.data.dtype))


def test_a_format_is_made_once(model: Path, tmp_path: Path) -> None:
    files = ModelFiles(model, tmp_path / "models")
    folder = files.hugging_face()
    (folder / "config.json").unlink()
    assert ModelFiles(model, tmp_path / "models").hugging_face() == folder
    assert not (folder / "config.json").exists()  # it was not written again
    assert files.float16().name == "float16.gguf"
