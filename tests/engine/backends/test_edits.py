"""What controls do to logits before temperature, as cells and words."""

import numpy as np
import pytest
import torch

from engine.backends.edits import Edits, allowed_words, apply, cells, edits_of, limited
from engine.controls import RowControls, SampleRow

VOCAB = 40
PLAIN = RowControls()


def row(controls: RowControls, tokens: list[int], prompt: int = 0, mask=None) -> SampleRow:
    return SampleRow(controls, 0, len(tokens), tokens, prompt, mask)


def test_rows_without_controls_have_no_edits():
    rows = [row(PLAIN, [1, 2, 3])] * 3
    assert [len(each) for each in edits_of(rows, VOCAB)] == [0] * 7
    assert limited(rows) == []


def test_each_edit_names_its_cells_and_no_cell_is_there_twice():
    controls = RowControls(
        logit_bias={7: 1.5, 0: -2.0},
        bad_words=((2, 9), (5, 6)),
        min_tokens=3,
        stop_ids=frozenset({11}),
        repetition_penalty=1.25,
        frequency_penalty=0.25,
        presence_penalty=0.5,
    )
    edits = edits_of([row(PLAIN, [4]), row(controls, [1, 2, 2], 1)], VOCAB)
    assert sorted(edits.forbidden) == [VOCAB + 9, VOCAB + 11]
    assert edits.biased.tolist() == [VOCAB + 7, VOCAB]
    assert edits.biases.tolist() == [1.5, -2.0]
    assert edits.repeated.tolist() == [VOCAB + 1, VOCAB + 2]
    assert edits.penalties.tolist() == [1.25, 1.25]
    assert edits.generated.tolist() == [VOCAB + 2]
    assert edits.takes.tolist() == [2 * 0.25 + 0.5]


def test_edits_are_applied_in_their_order():
    edits = Edits(
        forbidden=torch.tensor([5]),
        biased=torch.tensor([1, 2]),
        biases=torch.tensor([3.0, -3.0]),
        repeated=torch.tensor([1, 2]),
        penalties=torch.tensor([2.0, 2.0]),
        generated=torch.tensor([1]),
        takes=torch.tensor([0.5]),
    )
    logits = torch.tensor([[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]])
    apply(logits, edits)
    assert logits.tolist() == [[1.0, 4.0 / 2 - 0.5, -2.0 * 2], [1.0, 1.0, -torch.inf]]


def test_words_are_what_both_mask_and_allowed_ids_let_through():
    mask = np.array([0b1110, 0b1], dtype=np.uint32)
    allowed = RowControls(allowed_ids=frozenset({0, 1, 3, 32, 39}))
    rows = [row(PLAIN, [], 0, mask), row(allowed, []), row(allowed, [], 0, mask[:1])]
    words = allowed_words(rows, VOCAB)
    assert words.tolist() == [[0b1110, 0b1], [0b1011, 0b1000_0001], [0b1010, 0]]


@pytest.mark.parametrize("token", [-1, VOCAB])
def test_a_token_outside_the_vocabulary_has_no_cell(token: int):
    with pytest.raises(IndexError, match="vocabulary of 40"):
        cells([(0, 1), (0, token)], VOCAB)
