"""From token ids to deltas: text, stops, ends and token counts are exact."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.text.sequence import Delta, SequenceText
from app.text.tokenizer import ByteTokenizer, PieceTokenizer
from engine.outputs import Finish, FinishReason

DEF, SPACE, LLAMA_1, LLAMA_2, EOS, STOP_ID = range(6)
LENGTH = Finish(FinishReason.LENGTH)


class FakeTokenizer(PieceTokenizer):
    """A handful of tokens, by number."""

    def __init__(self):
        pieces = [b"DEF", b" ", b"\xf0\x9f", b"\xa6\x99", b"<eos>", b"STOP"]
        super().__init__(pieces, {"<eos>": EOS}, eos_ids={EOS})

    def _encode(self, text, continues):
        raise AssertionError("nothing is encoded here")


def run(tokens, stops=(), finish=LENGTH, **options):
    """The deltas of `tokens` up to the end; `finish` comes with the last token."""
    text = SequenceText(FakeTokenizer(), stops, **options)
    deltas = []
    for number, token in enumerate(tokens, 1):
        deltas.append(text.push(token, finish if number == len(tokens) else None))
        if text.done:
            break
    assert text.done
    assert text.tokens == deltas[-1].tokens
    return deltas


@pytest.mark.parametrize(
    ("stop", "texts", "tokens"),
    [
        ("FD", ["DE", ""], 2),
        ("EF", ["D"], 1),
        ("D", [""], 1),
        ("FDEFD", ["DE", "", ""], 3),
    ],
)
def test_a_stop_string_cuts_text_and_tokens_at_the_match(stop, texts, tokens):
    deltas = run([DEF] * 6, [stop])
    assert [delta.text for delta in deltas] == texts
    assert deltas[-1] == Delta(DEF, texts[-1], tokens, "stop", stop)
    assert all(delta.finish_reason is None for delta in deltas[:-1])


def test_the_stop_string_is_kept_when_asked_for():
    assert run([DEF] * 6, ["FD"], include_stop=True)[-1] == Delta(DEF, "FD", 2, "stop", "FD")


def test_held_back_text_comes_with_the_last_token():
    deltas = run([DEF, SPACE, DEF], ["F DEFX"])
    assert [delta.text for delta in deltas] == ["DE", "", "F DEF"]
    assert deltas[-1] == Delta(DEF, "F DEF", 3, "length", None)


def test_the_models_own_end_counts_but_has_no_text_and_no_stop_reason():
    deltas = run([DEF, EOS], finish=Finish(FinishReason.STOP, stop_token=EOS), skip_special=False)
    assert deltas == [Delta(DEF, "DEF", 1), Delta(EOS, "", 2, "stop", None)]


def test_a_stop_token_id_is_the_stop_reason_and_has_no_text():
    deltas = run([DEF, STOP_ID], finish=Finish(FinishReason.STOP, stop_token=STOP_ID))
    assert deltas[-1] == Delta(STOP_ID, "", 2, "stop", STOP_ID)


def test_an_ending_token_releases_the_held_back_text():
    deltas = run([DEF, EOS], ["FX"], finish=Finish(FinishReason.STOP, stop_token=EOS))
    assert [delta.text for delta in deltas] == ["DE", "F"]


def test_an_eos_id_that_was_told_to_be_ignored_goes_on_silently():
    assert [delta.text for delta in run([EOS, DEF, EOS])] == ["", "DEF", ""]


def test_a_stop_string_in_the_last_token_wins_over_its_length():
    assert run([DEF], ["EF"])[-1] == Delta(DEF, "D", 1, "stop", "EF")


def test_a_character_that_never_came_whole_is_replaced_in_the_last_delta():
    assert [delta.text for delta in run([DEF, LLAMA_1])] == ["DEF", "\ufffd"]
    assert [delta.text for delta in run([LLAMA_1, LLAMA_2])] == ["", "🦙"]


def test_a_stop_that_the_replaced_character_completes_is_found():
    assert run([DEF, LLAMA_1], ["F\ufffd"])[-1] == Delta(LLAMA_1, "", 2, "stop", "F\ufffd")


def test_tokens_after_the_end_are_ignored():
    text = SequenceText(FakeTokenizer(), ["D"])
    text.push(DEF)
    assert text.done
    assert text.push(DEF, LENGTH) == Delta(DEF, "", 1)
    assert text.tokens == 1


def test_an_empty_stop_string_is_refused():
    with pytest.raises(ValueError, match="must not be empty"):
        SequenceText(FakeTokenizer(), [""])


@given(st.text(alphabet="ab🦙é", min_size=1), st.lists(st.text(alphabet="ab🦙", min_size=1)))
def test_joined_deltas_are_the_text_up_to_the_first_stop(text, stops):
    tokenizer = ByteTokenizer()
    ids = tokenizer.encode(text)
    sequence = SequenceText(tokenizer, stops)
    deltas = [sequence.push(i, LENGTH if n == len(ids) else None) for n, i in enumerate(ids, 1)]
    joined = "".join(delta.text for delta in deltas)
    (end,) = (delta for delta in deltas if delta.finish_reason is not None)
    if end.finish_reason == "stop":
        assert text.startswith(joined + end.stop_reason)
        assert not any(stop in joined for stop in stops)
        assert end.tokens == len((joined + end.stop_reason).encode())
    else:
        assert joined == text
        assert not any(stop in text for stop in stops)
        assert end.tokens == len(ids)
