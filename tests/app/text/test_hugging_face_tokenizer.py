"""Tokenizers from Hugging Face folders equal the library's, except that text is only text."""

import json
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from app.text.files import load_tokenizer
from app.text.hugging_face import HuggingFaceTokenizer
from app.text.template import ChatTemplate, encode_segments
from app.text.tokenizer import encode_prompt
from engine.errors import ModelError
from tests.app.text.tiny_tokenizers import CORPUS, KINDS, TEMPLATE, train, write_folder

SENTENCE_PIECE = [kind for kind in KINDS if kind != "byte-level"]


@pytest.fixture(scope="session")
def library() -> dict[str, Tokenizer]:
    """The library's own tokenizers."""
    return {kind: train(kind) for kind in KINDS}


@pytest.fixture(scope="session")
def ours(library, tmp_path_factory) -> dict[str, HuggingFaceTokenizer]:
    """The same, read from folders."""
    return {
        kind: HuggingFaceTokenizer.from_folder(
            write_folder(tmp_path_factory.mktemp("hf"), tokenizer)
        )
        for kind, tokenizer in library.items()
    }


@pytest.fixture
def load(library, tmp_path: Path):
    """Loads a folder with changes (see `write_folder`)."""

    def make(kind: str = "byte-level", **changes: Any) -> HuggingFaceTokenizer:
        return HuggingFaceTokenizer.from_folder(write_folder(tmp_path, library[kind], **changes))

    return make


# ── text ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "text", [*CORPUS[:4], "", " ", "  two  spaces ", "<think>why", "a<think> b"]
)
def test_texts_have_the_ids_that_the_library_gives(library, ours, kind: str, text: str):
    assert ours[kind].encode(text) == library[kind].encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("kind", KINDS)
@given(text=st.text())
def test_any_text_comes_back(ours, kind: str, text: str):
    tokenizer = ours[kind]
    ids = tokenizer.encode(text)
    assert tokenizer.fewest_tokens(text) <= len(ids)
    assert not any(tokenizer.is_control(token) for token in ids)
    if kind == "byte-level":
        assert tokenizer.decode(ids) == unicodedata.normalize("NFC", text)
    elif "▁" not in text:
        first = " " if text and not (kind.startswith("metaspace") and text[0] == " ") else ""
        assert tokenizer.decode(ids) == first + text


@pytest.mark.parametrize("kind", KINDS)
def test_control_tokens_in_text_are_text(ours, kind: str):
    tokenizer = ours[kind]
    for text, token in tokenizer.control.items():
        ids = tokenizer.encode(f"a{text}b {text}{text}")
        assert not any(map(tokenizer.is_control, ids))
        assert tokenizer.decode(ids).strip() == f"a{text}b {text}{text}"
        assert tokenizer.token_bytes(token) == text.encode()


@pytest.mark.parametrize("kind", KINDS)
def test_added_tokens_that_are_not_special_are_found_in_text(library, ours, kind: str):
    think = library[kind].token_to_id("<think>")
    assert think in ours[kind].encode("so <think>hm")
    assert not ours[kind].is_control(think)
    assert ours[kind].token_bytes(think) == b"<think>"


@pytest.mark.parametrize("kind", SENTENCE_PIECE)
def test_bytes_stand_for_characters_without_a_token(library, ours, kind: str):
    token = library[kind].token_to_id("<0xF0>")
    assert token in ours[kind].encode("\U0001f40d")
    assert ours[kind].token_bytes(token) == b"\xf0"
    assert ours[kind].decode(ours[kind].encode("x \U0001f40d")) == " x \U0001f40d"


def test_a_space_stands_before_the_first_word_of_a_text_only_where_the_library_puts_it(
    library, ours
):
    for kind in KINDS:
        whole = library[kind].encode("<s>fox", add_special_tokens=False).ids
        assert ours[kind].encode("fox", continues=True) == whole[1:]
    first = ours["metaspace first"]
    assert first.decode(first.encode("fox")) == " fox"
    assert first.decode(first.encode("fox", continues=True)) == "fox"


@pytest.mark.parametrize("kind", KINDS)
def test_a_chat_is_encoded_as_the_library_encodes_its_text(library, ours, kind: str):
    tokenizer = ours[kind]
    template = ChatTemplate.for_tokenizer(tokenizer)
    segments = template.render([{"role": "user", "content": "What is it?"}] * 2)
    text = "<s>" + "<|im_start|>What is it?<|im_end|>" * 2
    expected = library[kind].encode(text, add_special_tokens=False).ids
    assert encode_segments(tokenizer, segments) == expected


# ── what the files say ────────────────────────────────────────────────────────────────────────


def test_special_added_tokens_and_bos_and_eos_are_control_tokens(load, library):
    assert set(load().control) == {"<s>", "</s>", "<|im_start|>", "<|im_end|>"}
    tokens = json.loads(library["byte-level"].to_str())["added_tokens"]
    plain = [token | {"special": False} for token in tokens]
    assert set(load(document={"added_tokens": plain}).control) == {"<s>", "</s>"}


def test_the_vocabulary_is_as_large_as_the_embedding(load, library):
    size = library["byte-level"].get_vocab_size()
    tokenizer = load()
    assert tokenizer.vocab_size == size + 10
    assert tokenizer.token_bytes(size + 9) == b""
    with pytest.raises(ValueError, match="outside the vocabulary"):
        tokenizer.token_bytes(size + 10)


def test_tokens_for_which_the_model_has_no_row_are_left_out(load, library):
    think = library["byte-level"].token_to_id("<think>")
    tokenizer = load(config={"vocab_size": think})
    assert tokenizer.vocab_size == think
    assert tokenizer.decode(tokenizer.encode("<think>")) == "<think>"


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({}, {"<|im_end|>", "</s>"}),
        ({"tokenizer_config": {"eos_token": None}}, {"<|im_end|>"}),
        ({"config": {"eos_token_id": None}}, {"</s>"}),
        ({"config": {"eos_token_id": [0, 1]}}, {"<s>", "</s>"}),
        ({"generation_config": {"eos_token_id": 1}}, {"</s>"}),
        ({"generation_config": {"eos_token_id": [0, 1]}}, {"<s>", "</s>"}),
    ],
)
def test_the_generation_config_says_how_the_model_ends_or_else_the_config(
    load, changes: dict[str, Any], names: set[str]
):
    tokenizer = load(**changes)
    assert {tokenizer.decode([token], skip_special=False) for token in tokenizer.eos_ids} == names


@pytest.mark.parametrize(
    ("changes", "prefix"),
    [
        ({}, (0,)),
        ({"tokenizer_config": {"add_bos_token": False}}, ()),
        ({"tokenizer_config": {"add_bos_token": True}, "document": {"post_processor": None}}, (0,)),
        ({"document": {"post_processor": None}}, ()),
        ({"document": {"post_processor": {"type": "ByteLevel"}}}, ()),
    ],
)
def test_prompts_start_with_bos_where_the_files_say_so(
    load, changes: dict[str, Any], prefix: tuple[int, ...]
):
    tokenizer = load(**changes)
    assert tokenizer.prefix == prefix
    assert encode_prompt(tokenizer, "fox") == [*prefix, *tokenizer.encode("fox")]


def test_a_post_processor_may_be_a_sequence(load, library):
    template = json.loads(library["byte-level"].to_str())["post_processor"]
    sequence = {"type": "Sequence", "processors": [{"type": "ByteLevel"}, template]}
    assert load(document={"post_processor": sequence}).prefix == (0,)


def test_texts_of_bos_and_eos_for_templates(load):
    tokenizer = load()
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<s>", "</s>")
    assert load(tokenizer_config={"bos_token": None}).bos_token == ""


def test_the_chat_template_is_a_file_or_in_the_configuration(load, tmp_path: Path):
    assert load().chat_template == TEMPLATE
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    assert load(tokenizer_config={"chat_template": named}).chat_template == "d"
    assert load(tokenizer_config={"chat_template": None}).chat_template is None
    (tmp_path / "chat_template.jinja").write_text("file")
    assert load().chat_template == "file"


def test_folders_and_files_are_told_apart(library, tmp_path: Path, tiny_gguf):
    folder = tmp_path / "folder"
    folder.mkdir()
    write_folder(folder, library["byte-level"])
    assert load_tokenizer(folder).control["<|im_start|>"] > 300
    assert load_tokenizer(tiny_gguf()).control["<|im_start|>"] == 1


# ── refusals ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["tokenizer.json", "config.json"])
def test_a_missing_file_is_named(load, tmp_path: Path, name: str):
    load()
    (tmp_path / name).unlink()
    with pytest.raises(ModelError, match=rf"{name}: No such file"):
        HuggingFaceTokenizer.from_folder(tmp_path)


@pytest.mark.parametrize("name", ["tokenizer", "tokenizer_config", "generation_config", "config"])
@pytest.mark.parametrize("content", ["", "{", "[1]"])
def test_a_damaged_file_is_named(load, tmp_path: Path, name: str, content: str):
    load()
    (tmp_path / f"{name}.json").write_text(content)
    with pytest.raises(ModelError, match=rf"/{name}\.json: not (a )?JSON"):
        HuggingFaceTokenizer.from_folder(tmp_path)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"document": {"model": {"type": "Unigram"}}}, "model Unigram is not supported"),
        ({"document": {"model": {"type": "BPE"}}}, "not a tokenizer that the library reads"),
        ({"document": {"added_tokens": [{}]}}, "not as a tokenizer.json should be"),
        (
            {"document": {"decoder": None, "pre_tokenizer": {"type": "Whitespace"}}},
            r"pre_tokenizer and decoder \(Whitespace\) are not supported",
        ),
        ({"config": {"vocab_size": None}}, "vocab_size is missing"),
        ({"config": {"eos_token_id": "two"}}, "eos_token_id or chat_template has a form"),
        ({"tokenizer_config": {"eos_token": {"text": "x"}}}, "has a form .*content"),
        ({"tokenizer_config": {"chat_template": ["x"]}}, "has a form"),
        ({"config": {"eos_token_id": 9999}}, "eos_token_id 9999 is outside"),
        (
            {"tokenizer_config": {"add_bos_token": True, "bos_token": None}},
            "add_bos_token is set, but '' is no added token",
        ),
    ],
)
def test_what_cannot_be_served_is_named(load, tmp_path: Path, changes: dict[str, Any], said: str):
    with pytest.raises(ModelError, match=said) as caught:
        load(**changes)
    assert str(tmp_path) in str(caught.value)
