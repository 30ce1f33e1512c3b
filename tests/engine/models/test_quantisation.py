"""int8 weights: what they lose, and that they come back from disk as they were."""

from pathlib import Path

import pytest
import torch

from engine.models import quantisation
from engine.models.products import QuantisedEmbedding, QuantisedMatrix, quantise_rows
from engine.models.weights import Weights, assemble
from tests.engine.models.tiny_llama import CONFIG, random_tensors


def watched() -> Weights:
    tensors = {name: torch.from_numpy(t) for name, t in random_tensors(CONFIG).items()}
    return quantisation.watched(assemble(CONFIG, tensors.__getitem__))


def matrices(weights: Weights):
    for layer in weights.layers:
        yield from (getattr(layer, name) for name in quantisation.MATRICES)
    yield weights.head


@pytest.mark.parametrize("most", [127, 63])
def test_no_number_is_larger_than_said_and_none_is_off_by_more_than_half_a_step(most: int) -> None:
    x = torch.randn(9, 33, generator=torch.Generator().manual_seed(0))
    numbers, scales = quantise_rows(x, most)
    assert int(numbers.abs().amax()) == most
    assert (numbers * scales[:, None] - x).abs().amax() <= scales.amax() / 2 * 1.0001


def test_a_row_of_zeros_stays_zero() -> None:
    numbers, scales = quantise_rows(torch.zeros(2, 5))
    assert not numbers.any()
    assert not scales.any()


def test_smoothing_helps_where_one_channel_is_far_larger() -> None:
    random = torch.Generator().manual_seed(1)
    x, w = torch.randn(64, 96, generator=random), torch.randn(48, 96, generator=random)
    x[:, 5] *= 100
    exact = x @ w.T

    def error(matrix: QuantisedMatrix) -> float:
        return float(torch.linalg.norm(matrix.multiply(x) - exact) / torch.linalg.norm(exact))

    smooth = quantisation.quantised_matrix(w, x.abs().amax(dim=0))
    assert error(smooth) < 0.5 * error(QuantisedMatrix(*quantise_rows(w)))
    assert error(smooth) < 0.02


def test_a_matrix_that_saw_nothing_is_not_smoothed() -> None:
    matrix = quantisation.quantised_matrix(torch.randn(4, 8), torch.zeros(8))
    assert matrix.smooth is None


def test_watched_weights_note_the_peak_of_each_channel() -> None:
    matrix = quantisation.Watched(torch.eye(3))
    matrix.multiply(torch.tensor([[1.0, -5.0, 0.0], [2.0, 1.0, 0.0]]), None)
    matrix.multiply(torch.tensor([[-1.0, 2.0, 0.5]]), None)
    assert matrix.peaks.tolist() == [2.0, 5.0, 0.5]


def test_a_tied_head_is_kept_once_and_is_the_embedding_to_within_a_step() -> None:
    before = watched()
    embedding = before.embedding
    before.head.peaks.uniform_(0.5, 4)
    after = quantisation.quantised(before)
    assert isinstance(after.embedding, QuantisedEmbedding)
    assert after.embedding.matrix is after.head
    rows = after.embedding.rows(torch.arange(CONFIG.vocab))
    assert torch.linalg.norm(rows - embedding) < 0.02 * torch.linalg.norm(embedding)


def test_what_was_saved_is_loaded_as_it_was(tmp_path: Path) -> None:
    before = watched()
    for matrix in matrices(before):
        matrix.peaks.uniform_(0.5, 4)
    made = quantisation.quantised(before)
    quantisation.save(made, tmp_path / "deep" / "weights.safetensors")
    loaded = quantisation.load(tmp_path / "deep" / "weights.safetensors", CONFIG)
    for one, other in zip(matrices(made), matrices(loaded), strict=True):
        assert torch.equal(one.numbers, other.numbers)
        assert torch.equal(one.scales, other.scales)
        assert torch.equal(one.smooth, other.smooth)
    assert torch.equal(made.layers[1].ffn_norm, loaded.layers[1].ffn_norm)
    assert loaded.layers[0].qkv_bias is None
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["weights.safetensors"]
