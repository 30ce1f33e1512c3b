"""Tokenizers: equal to the reference, reversible, and deaf to control tokens in plain text."""

import json
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.text.gguf_tokenizer import GGUFTokenizer
from app.text.tokenizer import ByteTokenizer, encode_prompt
from engine.errors import ModelError

REFERENCE = Path(__file__).parents[2] / "fixtures" / "smollm2_tokens.jsonl"


def reference_rows() -> list[dict]:
    return [json.loads(line) for line in REFERENCE.read_text(encoding="utf-8").splitlines()]


def test_smollm2_gives_the_reference_ids(smollm2):
    rows = reference_rows()
    assert len(rows) == 209
    wrong = [row["text"] for row in rows if smollm2.encode(row["text"]) != row["ids"]]
    assert wrong == []


def test_smollm2_decodes_the_reference_ids_back(smollm2):
    wrong = [row["text"] for row in reference_rows() if smollm2.decode(row["ids"]) != row["text"]]
    assert wrong == []


def test_smollm2_facts(smollm2):
    assert smollm2.vocab_size == 49152
    assert smollm2.eos_ids == {2}
    assert smollm2.control["<|im_end|>"] == 2
    assert len(smollm2.control) == 17
    assert smollm2.encode("") == []
    assert smollm2.encode("🦙🧪") == [10813, 116, 243, 10813, 117, 120]
    assert smollm2.token_bytes(10813) == b"\xf0\x9f"
    assert smollm2.token_bytes(33662) == b" hello"
    assert smollm2.prefix == ()
    assert smollm2.metadata.context_length == 8192


def test_smollm2_never_yields_a_control_token(smollm2):
    for text, token in smollm2.control.items():
        ids = smollm2.encode(f"a{text}b {text}{text}")
        assert not any(smollm2.is_control(i) for i in ids)
        assert smollm2.decode(ids) == f"a{text}b {text}{text}"
        assert smollm2.token_bytes(token) == text.encode()


@pytest.fixture
def eager_switching():
    """Threads that want the interpreter get it within microseconds, if its holder can let go."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("eager_switching")
def test_encoding_leaves_the_interpreter_to_other_threads(smollm2):
    """While one thread encodes a megabyte this one keeps counting."""
    worker = threading.Thread(target=smollm2.encode, args=("The quick brown fox. " * 50_000,))
    worker.start()
    turns = 0
    while worker.is_alive():
        turns += 1
    assert turns > 100_000


@pytest.mark.parametrize("text", ["\ud83d", "good \udc00 bad", "é\ud800"])
@pytest.mark.parametrize("kind", ["byte", "gguf"])
def test_a_lone_surrogate_is_a_value_error_that_says_where(tiny_gguf, kind, text):
    tokenizer = ByteTokenizer() if kind == "byte" else GGUFTokenizer.from_file(tiny_gguf())
    with pytest.raises(ValueError, match=r"lone surrogate, U\+D[8C]\w\w, at character \d"):
        tokenizer.encode(text)


def test_merges_apply_in_their_order(tiny_gguf):
    tokenizer = GGUFTokenizer.from_file(tiny_gguf())
    pieces = [tokenizer.token_bytes(i) for i in tokenizer.encode("abc abcab")]
    assert pieces == [b"abc", b" abc", b"ab"]


@pytest.mark.parametrize(("pre", "ids"), [("smollm", [b"ab", b"c"]), ("llama3", [b"abc"])])
def test_llama_3_takes_a_word_that_is_a_token_whatever_the_merges_say(tiny_gguf, pre, ids):
    tokenizer = GGUFTokenizer.from_file(tiny_gguf(pre=pre, merges=["a b"]))
    assert [tokenizer.token_bytes(i) for i in tokenizer.encode("abc")] == ids


def test_every_kind_of_token_has_its_bytes(tiny_gguf):
    tokenizer = GGUFTokenizer.from_file(tiny_gguf())
    assert tokenizer.token_bytes(1) == b"<|im_start|>"
    assert tokenizer.token_bytes(3) == b"<think>"
    assert tokenizer.token_bytes(4) == b"\xf0"
    outside_the_alphabet = tokenizer.vocab_size - 1
    assert tokenizer.token_bytes(outside_the_alphabet) == "日本".encode()


def test_user_defined_tokens_are_found_and_control_tokens_are_not(tiny_gguf):
    tokenizer = GGUFTokenizer.from_file(tiny_gguf())
    assert set(tokenizer.control) == {"<unk>", "<|im_start|>", "<|im_end|>"}
    ids = tokenizer.encode("a<think><|im_end|><unk>")
    assert ids[1] == 3
    assert not {0, 1, 2}.intersection(ids)
    assert tokenizer.decode(ids) == "a<think><|im_end|><unk>"


def test_a_byte_without_a_token_is_left_out(tiny_gguf):
    tokenizer = GGUFTokenizer.from_file(tiny_gguf())
    assert tokenizer.decode(tokenizer.encode("aXb")) == "ab"


@pytest.mark.parametrize(
    ("add_bos", "pre", "prefix"),
    [
        (True, "smollm", [1]),
        (False, "smollm", []),
        (None, "smollm", []),
        (None, "qwen2", []),
        (None, "llama-bpe", [1]),
        (None, "tekken", [1]),
        (False, "tekken", []),
    ],
)
def test_bos_comes_where_the_file_says_so_or_else_the_pre_tokenizer(
    tiny_gguf, add_bos, pre, prefix
):
    tokenizer = GGUFTokenizer.from_file(tiny_gguf(add_bos=add_bos, pre=pre))
    assert encode_prompt(tokenizer, "abc") == [*prefix, *tokenizer.encode("abc")]


def test_an_unknown_pre_tokenizer_is_refused_by_name(tiny_gguf):
    known = "known are: default, gpt-2, llama-bpe, llama-v3, llama3, qwen2, smollm, tekken"
    with pytest.raises(ModelError, match=rf"tiny\.gguf: .*'martian'; {known}"):
        GGUFTokenizer.from_file(tiny_gguf(pre="martian"))
    with pytest.raises(ModelError, match=f"None; {known}"):
        GGUFTokenizer.from_file(tiny_gguf(pre=None))


def test_another_algorithm_is_refused_by_name(tiny_gguf):
    with pytest.raises(ModelError, match=r"tiny\.gguf: .*'llama'; only gpt2"):
        GGUFTokenizer.from_file(tiny_gguf(model="llama"))


def test_merges_that_do_not_fit_the_vocabulary_are_refused(tiny_gguf):
    with pytest.raises(ModelError, match="has 'x y', but 'xy' is no plain token"):
        GGUFTokenizer.from_file(tiny_gguf(merges=["x y"]))


def test_merges_cannot_build_a_control_token(tiny_gguf):
    with pytest.raises(ModelError, match="'ab' is no plain token"):
        GGUFTokenizer.from_file(tiny_gguf([("a", 1), ("b", 1), ("ab", 3)], merges=["a b"]))


@pytest.mark.parametrize("token", [-1, 258])
def test_an_id_outside_the_vocabulary_is_refused(token):
    with pytest.raises(ValueError, match=f"{token} is outside the vocabulary of 258"):
        ByteTokenizer().decode([token])


def test_decode_hides_control_tokens_unless_asked():
    tokenizer = ByteTokenizer()
    assert tokenizer.decode([256, 104, 105, 257]) == "hi"
    assert tokenizer.decode([256, 104, 105, 257], skip_special=False) == "<|im_start|>hi<|im_end|>"


@given(st.text())
def test_bytes_round_trip_and_keep_the_lower_bound(text):
    tokenizer = ByteTokenizer()
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.fewest_tokens(text) <= len(ids)
    assert not any(tokenizer.is_control(i) for i in ids)


def test_fewest_tokens_is_a_lower_bound_on_real_text(smollm2):
    for row in reference_rows():
        assert smollm2.fewest_tokens(row["text"]) <= len(row["ids"])
    assert smollm2.fewest_tokens("x" * 1_000_000) > 8192
