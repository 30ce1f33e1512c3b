"""int8 weights: what they lose, and that they come back from disk as they were."""

from functools import partial
from pathlib import Path

import pytest
import torch

from engine.models import quantisation
from engine.models.products import QuantisedEmbedding, QuantisedMatrix, quantise_rows
from engine.models.smoothing import balanced
from engine.models.weights import Weights, assemble
from tests.engine.models.tiny_llama import CONFIG, random_tensors


def watched() -> Weights:
    tensors = {name: torch.from_numpy(t) for name, t in random_tensors(CONFIG).items()}
    return quantisation.watched(partial(assemble, CONFIG, tensors.__getitem__))


def matrices(weights: Weights):
    for layer in weights.layers:
        yield from (getattr(layer, name) for name in quantisation.MATRICES)
    yield weights.head


def activations(matrix: quantisation.Watched):
    """Some, of channels that differ."""
    random, inputs = torch.Generator().manual_seed(0), matrix.make().shape[1]
    return torch.randn(32, inputs, generator=random) * (torch.rand(inputs, generator=random) + 0.1)


def error(matrix: QuantisedMatrix, x: torch.Tensor, exact: torch.Tensor) -> float:
    return float(torch.linalg.norm(matrix.multiply(x) - exact) / torch.linalg.norm(exact))


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
    factors = balanced(*quantisation.layer_sides(x, w, exact))
    smooth = quantisation.quantised_matrix(w, factors)
    plain = quantisation.quantised_matrix(w)
    assert error(smooth, x, exact) < 0.5 * error(plain, x, exact)
    assert error(smooth, x, exact) < 0.02


def test_a_token_whose_activations_are_a_thousand_times_the_others_does_not_spoil_them() -> None:
    random = torch.Generator().manual_seed(2)
    x, w = torch.randn(64, 96, generator=random), torch.randn(48, 96, generator=random)
    others = x[1:].clone()
    x[0, 7] = 5000
    factors = balanced(*quantisation.layer_sides(x, w, x @ w.T))
    assert error(quantisation.quantised_matrix(w, factors), others, others @ w.T) < 0.015


def test_the_head_heeds_what_is_probable() -> None:
    random = torch.Generator().manual_seed(3)
    x, w = torch.randn(64, 32, generator=random), 0.1 * torch.randn(300, 32, generator=random)
    w[200:, 3] *= 50  # a channel that tells apart who is never meant
    x[:, 3] = -x[:, 3].abs() - 3
    w[200:, 3] = w[200:, 3].abs()
    factors = balanced(*quantisation.head_sides(x, w))
    heeded = balanced(*quantisation.layer_sides(x, w, x @ w.T))
    exact = (x @ w.T).log_softmax(-1)

    def divergence(matrix: QuantisedMatrix) -> float:
        found = matrix.multiply(x).log_softmax(-1)
        return float((exact.exp() * (exact - found)).sum(-1).mean())

    for_head = divergence(quantisation.quantised_matrix(w, factors))
    assert for_head < 0.5 * divergence(quantisation.quantised_matrix(w, heeded))


def test_a_matrix_that_saw_nothing_is_not_smoothed() -> None:
    before = watched()
    assert quantisation.quantised(before).layers[0].qkv.smooth is None


def test_watched_weights_multiply_as_before_and_become_int8() -> None:
    w = torch.randn(6, 8, generator=torch.Generator().manual_seed(4))
    x = torch.randn(5, 8, generator=torch.Generator().manual_seed(5))
    matrix = quantisation.Watched(w.clone, 63)
    product = matrix.multiply(x, torch.ones(6))
    torch.testing.assert_close(product, x @ w.T + 1)
    assert matrix.quantised is not None
    assert int(matrix.quantised.numbers.abs().amax()) == 63
    with pytest.raises(ValueError, match="once"):
        matrix.multiply(x, None)


def test_a_tied_head_is_kept_once_and_is_the_embedding_to_within_a_step() -> None:
    before = watched()
    embedding = before.embedding
    before.head.multiply(activations(before.head), None)
    after = quantisation.quantised(before)
    assert isinstance(after.embedding, QuantisedEmbedding)
    assert after.embedding.matrix is after.head
    rows = after.embedding.rows(torch.arange(CONFIG.vocab))
    assert torch.linalg.norm(rows - embedding) < 0.02 * torch.linalg.norm(embedding)


def test_what_was_saved_is_loaded_as_it_was(tmp_path: Path) -> None:
    before = watched()
    for matrix in matrices(before):
        matrix.multiply(activations(matrix), None)
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
