"""Log-probabilities in both shapes."""

from app.logprobs import ChatLogprobs, CompletionLogprobs, token_text
from engine.controls import TokenLogprobs

PIECES = [b"a", b" \xe2\x80", b"\x99", b"\xf0\x9f"]


def entry(token, logprob, *top):
    return token, TokenLogprobs(logprob, top)


def test_a_token_that_is_no_text_is_spelled_in_bytes():
    assert token_text(b" hello") == " hello"
    assert token_text(b"\xf0\x9f") == "bytes:\\xf0\\x9f"


def test_chat_lists_one_entry_a_token_with_its_alternatives():
    shape = ChatLogprobs(PIECES.__getitem__)
    assert shape.render([entry(0, -0.1, (0, -0.1), (3, -2.5))]) == {
        "content": [
            {
                "token": "a",
                "logprob": -0.1,
                "bytes": [97],
                "top_logprobs": [
                    {"token": "a", "logprob": -0.1, "bytes": [97]},
                    {"token": "bytes:\\xf0\\x9f", "logprob": -2.5, "bytes": [240, 159]},
                ],
            }
        ],
        "refusal": None,
    }


def test_completions_show_the_chosen_token_beside_the_best():
    shape = CompletionLogprobs(PIECES.__getitem__)
    assert shape.render([entry(0, -3.0, (3, -0.5))])["top_logprobs"] == [
        {"bytes:\\xf0\\x9f": -0.5, "a": -3.0}
    ]


def test_text_offsets_count_characters_and_go_on_over_chunks():
    shape = CompletionLogprobs(PIECES.__getitem__)
    first = shape.render([entry(0, -1.0), entry(1, -1.0)])
    second = shape.render([entry(2, -1.0), entry(0, -1.0)])
    # "a", then " " and two thirds of ’, then its last third, then "a": the text is "a ’a"
    assert first["text_offset"] + second["text_offset"] == [0, 1, 2, 3]
    assert second["tokens"] == ["bytes:\\x99", "a"]
    assert second["token_logprobs"] == [-1.0, -1.0]
