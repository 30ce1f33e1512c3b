"""Smoothing factors: where the error that they are looked for is least."""

import pytest
import torch

from engine.models.smoothing import STEPS_PER_OCTAVE, Side, balanced


def sides(seed: int, *, loud: float = 1) -> tuple[Side, Side]:
    random = torch.Generator().manual_seed(seed)
    spread = torch.randn(48, generator=random).exp()
    x = torch.randn(200, 48, generator=random) * spread
    x[:, 3] *= loud
    w = torch.randn(64, 48, generator=random) / spread.sqrt()
    return Side.of(x, torch.ones(200)), Side.of(w, torch.ones(64))


def expected_error(activations: Side, weights: Side, factors: torch.Tensor) -> float:
    """The sum in the module's docstring, written down again."""
    a = (activations.counts * (activations.rows / factors).amax(1) ** 2).sum()
    b = (weights.counts * (weights.rows * factors).amax(1) ** 2).sum()
    c, h = (weights.energy * factors**2).sum(), (activations.energy / factors**2).sum()
    return float(a * c + b * h)


@pytest.mark.parametrize("loud", [1, 30])
def test_no_power_of_the_peaks_has_less_error(loud: float) -> None:
    activations, weights = sides(1, loud=loud)
    least = expected_error(activations, weights, balanced(activations, weights))
    peaks, widths = activations.rows.amax(0), weights.rows.amax(0)
    powers = [peaks**p / widths ** (1 - p) for p in torch.linspace(0, 1, 21)]
    assert least < min(expected_error(activations, weights, each) for each in powers)
    assert least < 0.8 * expected_error(activations, weights, torch.ones(48))


def test_the_expected_error_is_what_rounding_costs() -> None:
    random = torch.Generator().manual_seed(2)
    x, w = torch.randn(400, 64, generator=random), torch.randn(300, 64, generator=random)

    def rounded(values: torch.Tensor) -> torch.Tensor:
        steps = values.abs().amax(1, keepdim=True) / 127
        return (values / steps).round() * steps

    found = float((rounded(x) @ rounded(w).T - x @ w.T).square().sum())
    both = Side.of(x, torch.ones(400)), Side.of(w, torch.ones(300))
    expected = expected_error(*both, torch.ones(64)) / 127**2 / 12
    assert found == pytest.approx(expected, rel=0.05)


def test_factors_are_rounded_so_that_other_sums_give_the_same_weights() -> None:
    activations, weights = sides(3)
    factors = balanced(activations, weights)
    steps = factors.double().log2() * STEPS_PER_OCTAVE
    torch.testing.assert_close(steps, steps.round(), atol=1e-4, rtol=0)
    noisy = Side(activations.rows, activations.counts, activations.energy * (1 + 1e-7))
    assert torch.equal(balanced(noisy, weights), factors)


def test_silent_and_unused_channels_have_a_factor_too() -> None:
    x, w = torch.randn(20, 8), torch.randn(10, 8)
    x[:, 2] = 0
    w[:, 5] = 0
    x[4] = 0
    factors = balanced(Side.of(x, torch.ones(20)), Side.of(w, torch.ones(10)))
    assert factors.isfinite().all()
    assert (factors > 0).all()
    nothing = balanced(Side.of(torch.zeros(3, 8), torch.ones(3)), Side.of(w, torch.ones(10)))
    assert nothing.isfinite().all()


def test_rows_are_taken_evenly_and_stand_for_the_others() -> None:
    rows = torch.arange(20.0).view(10, 2)
    side = Side.of(rows, torch.ones(10), most=4)
    assert side.rows.tolist() == rows[::3].tolist()
    assert side.counts.tolist() == [3.0] * 4
    assert side.energy.tolist() == rows.square().sum(0).tolist()
