"""Deltas join to the text, whatever the tokens; no half characters on the way."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.text.detokenizer import Detokenizer
from app.text.tokenizer import ByteTokenizer

LLAMA_AND_TUBE = [10813, 116, 243, 10813, 117, 120]  # 🦙🧪 in SmolLM2's tokens
TEXTS = [
    "The capital of France is Paris.",
    "🦙🧪 日本 crème brûlée \u200d👩‍👩‍👧‍👦",
    " leading space\n\n\ttabs  ",
    "“quotes” – dashes … ½",
]


def deltas(tokenizer, ids, skip_special=True):
    detokenizer = Detokenizer(tokenizer, skip_special)
    return [*(detokenizer.feed(token) for token in ids), detokenizer.flush()]


@given(st.lists(st.integers(0, 257)), st.booleans())
def test_joined_deltas_equal_the_decoded_whole(ids, skip_special):
    tokenizer = ByteTokenizer()
    whole = tokenizer.decode(ids, skip_special)
    assert "".join(deltas(tokenizer, ids, skip_special)) == whole


@given(st.text())
def test_no_delta_of_valid_text_holds_a_replacement_character(text):
    tokenizer = ByteTokenizer()
    pieces = deltas(tokenizer, tokenizer.encode(text))
    assert "".join(pieces) == text
    assert sum(piece.count("\ufffd") for piece in pieces) == text.count("\ufffd")


@given(st.lists(st.integers(0, 49151)), st.booleans())
def test_joined_deltas_equal_the_decoded_whole_for_real_tokens(smollm2, ids, skip_special):
    whole = smollm2.decode(ids, skip_special)
    assert "".join(deltas(smollm2, ids, skip_special)) == whole


def test_characters_over_several_tokens_come_whole(smollm2):
    assert deltas(smollm2, LLAMA_AND_TUBE) == ["", "", "🦙", "", "", "🧪", ""]


@pytest.mark.parametrize("text", TEXTS)
def test_real_texts_stream_as_they_are(smollm2, text):
    pieces = deltas(smollm2, smollm2.encode(text))
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)


def test_leading_spaces_are_kept(smollm2):
    assert "".join(deltas(smollm2, [33662, 33662, 33662])) == " hello hello hello"


def test_an_open_character_is_replaced_only_at_the_end():
    assert deltas(ByteTokenizer(), [0xF0, 0x9F]) == ["", "", "\ufffd"]


def test_a_hidden_control_token_does_not_break_a_character():
    halves = list("é".encode())
    assert deltas(ByteTokenizer(), [halves[0], 256, halves[1]]) == ["", "", "é", ""]
