"""Small GGUF files made on the spot, and the real default model where it has been fetched."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest

from app.model_files import DEFAULT_MODEL
from app.text.gguf_tokenizer import GGUFTokenizer

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
TINY_TOKENS = [
    ("<unk>", UNKNOWN),
    ("<|im_start|>", CONTROL),
    ("<|im_end|>", CONTROL),
    ("<think>", USER_DEFINED),
    ("<0xF0>", BYTE),
    *((letter, NORMAL) for letter in "abcdefghijklmnopqrstuvwxyz<|>_Ġ"),
    ("ab", NORMAL),
    ("abc", NORMAL),
    ("Ġabc", NORMAL),
    ("日本", NORMAL),
]
TINY_MERGES = ["a b", "ab c", "Ġ abc"]


def write_gguf(path: Path, tokens: list[tuple[str, int]] = TINY_TOKENS, **changes: Any) -> Path:
    """A GGUF file with a vocabulary only; `changes` replace its keys, None leaves one out."""
    values = {
        "model": "gpt2",
        "pre": "smollm",
        "merges": TINY_MERGES,
        "eos": 2,
        "bos": 1,
        "add_bos": False,
        "chat_template": "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}",
    } | changes
    writer = gguf.GGUFWriter(path, "llama")
    writers = {
        "model": writer.add_tokenizer_model,
        "pre": writer.add_tokenizer_pre,
        "merges": writer.add_token_merges,
        "eos": writer.add_eos_token_id,
        "eot": writer.add_eot_token_id,
        "bos": writer.add_bos_token_id,
        "add_bos": writer.add_add_bos_token,
        "chat_template": writer.add_chat_template,
    }
    writer.add_context_length(512)
    writer.add_token_list([text for text, _ in tokens])
    writer.add_token_types([kind for _, kind in tokens])
    for key, value in values.items():
        if value is not None:
            writers[key](value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def tiny_gguf(tmp_path: Path) -> Callable[..., Path]:
    """A factory of small GGUF files; arguments as for `write_gguf` without the path."""
    return lambda *args, **changes: write_gguf(tmp_path / "tiny.gguf", *args, **changes)


@pytest.fixture(scope="session")
def smollm2() -> GGUFTokenizer:
    """The tokenizer of the default model."""
    path = Path(__file__).parents[3] / "models" / DEFAULT_MODEL.file
    if not path.exists():
        pytest.skip(f"{path.name} is not in models/ (`make model` fetches it)")
    return GGUFTokenizer.from_file(path)
