"""How text is cut into words: the same as where each pattern comes from.

Expected: for gpt-2 and smollm the library's own components (smollm is also held to llama.cpp's
token ids in test_tokenizer.py); for qwen2 and llama-bpe the patterns in transformers; for tekken
and default splits worked out by hand from the patterns in llama.cpp's src/llama-vocab.cpp.
"""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers
from transformers.convert_slow_tokenizer import TikTokenConverter
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

from app.text.byte_level import piece_bytes
from app.text.pre_tokenizers import PRE_TOKENIZERS

REFERENCE = Path(__file__).parents[2] / "fixtures" / "smollm2_tokens.jsonl"
TEXTS = [json.loads(line)["text"] for line in REFERENCE.read_text(encoding="utf-8").splitlines()]


def byte_level(pattern: str) -> pre_tokenizers.PreTokenizer:
    cut = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([cut, letters])


GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
SOURCES = {
    "gpt-2": GPT2,
    "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), GPT2]),
    "qwen2": byte_level(PRETOKENIZE_REGEX),
    "llama-bpe": byte_level(TikTokenConverter("unused").pattern),
}


@pytest.mark.parametrize("name", SOURCES)
def test_real_texts_are_cut_as_by_the_source(name: str):
    ours = PRE_TOKENIZERS[name].pre_tokenizer()
    assert len(TEXTS) == 209
    for text in TEXTS:
        assert ours.pre_tokenize_str(text) == SOURCES[name].pre_tokenize_str(text)


@pytest.mark.parametrize("name", SOURCES)
@given(
    text=st.text(alphabet=st.one_of(st.characters(codec="utf-8"), st.sampled_from("a1 '\n\tsS")))
)
def test_any_text_is_cut_as_by_the_source(name: str, text: str):
    ours = PRE_TOKENIZERS[name].pre_tokenizer()
    assert ours.pre_tokenize_str(text) == SOURCES[name].pre_tokenize_str(text)


def words(name: str, text: str) -> list[str]:
    pieces = PRE_TOKENIZERS[name].pre_tokenizer().pre_tokenize_str(text)
    return [piece_bytes(piece).decode() for piece, _ in pieces]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("smollm", "It's 2024!", ["It", "'s", " ", "2", "0", "2", "4", "!"]),
        ("gpt-2", "It's 2024!", ["It", "'s", " 2024", "!"]),
        ("gpt-2", "a  b\n\nc", ["a", " ", " b", "\n", "\n", "c"]),
        ("llama-bpe", "It'S 123456 x", ["It", "'S", " ", "123", "456", " x"]),
        ("llama-bpe", "a  b\n\nc", ["a", " ", " b", "\n\n", "c"]),
        ("llama-bpe", "(ok)...\n\nno", ["(ok", ")...\n\n", "no"]),
        ("qwen2", "It'S 123 x", ["It", "'S", " ", "1", "2", "3", " x"]),
        ("tekken", "HelloWorld", ["Hello", "World"]),
        ("tekken", "HTTPServer it's", ["HTTPServer", " it", "'s"]),
        ("tekken", "ÉcoleÀ", ["École", "À"]),
        ("tekken", "path/to//\nx 12", ["path", "/to", "//\n", "x", " ", "1", "2"]),
        ("default", "It's 2024!", ["It", "'", "s", " ", "202", "4", "!"]),
        ("default", "a+b  c", ["a", "+", "b", " ", " c"]),
    ],
)
def test_known_splits(name: str, text: str, expected: list[str]):
    assert words(name, text) == expected


def test_names_of_llama_3_are_one():
    assert PRE_TOKENIZERS["llama3"] == PRE_TOKENIZERS["llama-v3"] == PRE_TOKENIZERS["llama-bpe"]
