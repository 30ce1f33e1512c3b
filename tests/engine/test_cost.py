"""The step-cost model: what it learns, what it is not fooled by, and when it says so."""

import itertools
import random
import statistics
from collections.abc import Callable, Iterator

import pytest
from support.engines import Harness

from engine.backends.simulated import SimulatedBackend
from engine.batch import Batch, StepShape
from engine.clock import VirtualClock
from engine.cost import PRIOR, FittedCost, LearningCost, LinearCost

TRUTH = LinearCost(base=8e-3, prompt_token=3e-4, decode=6e-4, kv_read=4e-6, chunk_context=1e-7)
DECODES = StepShape(prefill=0, decodes=32, kv_read=32 * 700, chunk_context=0)
NAMES = ("base", "prompt_token", "decode", "kv_read", "chunk_context")


def scaled(cost: LinearCost, **factors: float) -> LinearCost:
    """The cost with some coefficients multiplied."""
    return LinearCost(*(getattr(cost, name) * factors.get(name, 1.0) for name in NAMES))


def slower(cost: LinearCost, factor: float) -> LinearCost:
    return scaled(cost, **dict.fromkeys(NAMES, factor))


def shapes(seed: int) -> Iterator[StepShape]:
    """Mixed steps: up to 64 decodes over contexts of 20 to 1,500; four in ten with a chunk."""
    rng = random.Random(seed)
    while True:
        chunk = rng.choice([64, 128, 256, 512]) if rng.random() < 0.4 else 0
        decodes = rng.randint(0 if chunk else 1, 64)
        context = chunk + rng.randint(0, 1500) if chunk else 0
        read = sum(rng.randint(20, 1500) for _ in range(decodes))
        yield StepShape(chunk, decodes, read + context, chunk * context)


def observe(
    fit: LearningCost,
    truth: LinearCost,
    steps: int,
    seed: int = 0,
    noise: Callable[[random.Random], float] = lambda rng: 1.0,
) -> None:
    """Let the model see `steps` varied steps that cost what `truth` says, times noise."""
    rng = random.Random(seed)
    for shape in itertools.islice(shapes(seed), steps):
        fit.observe(shape, truth.of(shape) * noise(rng))


def tenth(rng: random.Random) -> float:
    return max(0.0, rng.gauss(1, 0.1))


def worst(fit: FittedCost, truth: LinearCost) -> float:
    """The largest relative error of a prediction over fresh varied shapes."""
    fresh = itertools.islice(shapes(999), 300)
    return max(abs(fit.of(shape) / truth.of(shape) - 1) for shape in fresh)


# ------------------------------------------------------------------------ what it learns


@pytest.mark.parametrize("seed", range(3))
def test_planted_coefficients_are_recovered_from_noisy_steps(seed: int) -> None:
    fit = FittedCost()
    observe(fit, TRUTH, 4000, seed, tenth)
    found = fit.coefficients
    for name, tolerance in zip(NAMES, (0.05, 0.1, 0.25, 0.1, 0.2), strict=True):
        assert getattr(found, name) == pytest.approx(getattr(TRUTH, name), rel=tolerance), name
    assert worst(fit, TRUTH) < 0.06
    assert fit.observations == 4000


@pytest.mark.parametrize(("factor", "steps"), [(0.01, 500), (0.1, 200), (10, 100), (100, 100)])
def test_a_prior_that_is_far_off_is_outgrown_within_some_hundred_steps(
    factor: float, steps: int
) -> None:
    fit = FittedCost(slower(TRUTH, factor))
    observe(fit, TRUTH, steps, noise=tenth)
    assert worst(fit, TRUTH) < 0.25


def test_a_prior_of_nothing_at_all_is_a_prior() -> None:
    fit = FittedCost(LinearCost())
    assert fit.of(DECODES) == 0
    observe(fit, TRUTH, 200)
    assert worst(fit, TRUTH) < 0.05


def test_the_first_predictions_are_the_priors() -> None:
    fit = FittedCost(TRUTH)
    assert fit.of(DECODES) == pytest.approx(TRUTH.of(DECODES))
    assert fit.seconds(512, 3, 900, 512 * 700) == pytest.approx(
        TRUTH.seconds(512, 3, 900, 512 * 700)
    )


def test_a_slow_drift_is_followed() -> None:
    fit = FittedCost()
    observe(fit, TRUTH, 2000, noise=tenth)
    rng = random.Random(5)
    missed = []
    for step, shape in enumerate(itertools.islice(shapes(5), 4000)):
        now = slower(TRUTH, 1 + step / 4000)  # twice as slow in the end
        missed.append(abs(fit.of(shape) / now.of(shape) - 1))
        fit.observe(shape, now.of(shape) * tenth(rng))
    assert statistics.mean(missed) < 0.08


def test_a_coefficient_that_alone_changes_is_found() -> None:
    fit = FittedCost()
    observe(fit, TRUTH, 2000, noise=tenth)
    dearer = scaled(TRUTH, prompt_token=2)
    observe(fit, dearer, 2000, seed=6, noise=tenth)
    assert fit.coefficients.prompt_token == pytest.approx(dearer.prompt_token, rel=0.15)
    assert fit.coefficients.decode == pytest.approx(TRUTH.decode, rel=0.3)


def test_a_device_a_hundred_times_as_fast_as_the_prior_is_learned() -> None:
    fit = FittedCost()
    device = LinearCost(1.2e-3, 1.5e-6, 6e-6, 2e-9, 1e-10)
    observe(fit, device, 300, noise=tenth)
    assert worst(fit, device) < 0.15


def test_a_quantity_that_never_occurs_keeps_its_prior() -> None:
    fit = FittedCost(TRUTH)
    rng = random.Random(2)
    for _ in range(3000):
        decodes = rng.randint(1, 64)
        shape = StepShape(0, decodes, decodes * rng.randint(20, 1500), 0)
        fit.observe(shape, 3 * TRUTH.of(shape) * tenth(rng))
    assert fit.coefficients.prompt_token == pytest.approx(TRUTH.prompt_token)
    assert fit.coefficients.chunk_context == pytest.approx(TRUTH.chunk_context)
    assert fit.of(DECODES) == pytest.approx(3 * TRUTH.of(DECODES), rel=0.05)


def test_the_same_observations_give_the_same_numbers() -> None:
    fits = [FittedCost(), FittedCost()]
    for fit in fits:
        observe(fit, TRUTH, 500, noise=tenth)
    assert fits[0].coefficients == fits[1].coefficients


# ------------------------------------------------------------------------ what does not fool it


def test_twenty_thousand_equal_steps_leave_what_they_do_not_show_as_it_was() -> None:
    fit = FittedCost()
    observe(fit, TRUTH, 3000, noise=tenth)
    before = fit.coefficients
    rng = random.Random(3)
    for _ in range(20_000):
        fit.observe(DECODES, TRUTH.of(DECODES) * tenth(rng))
    assert worst(fit, TRUTH) < 0.1
    assert fit.coefficients.prompt_token == pytest.approx(before.prompt_token, rel=0.05)
    assert fit.coefficients.chunk_context == pytest.approx(before.chunk_context, rel=0.05)


def test_the_first_odd_step_after_a_long_monotony_breaks_nothing() -> None:
    fit = FittedCost()
    observe(fit, TRUTH, 3000, noise=tenth)
    for _ in range(20_000):
        fit.observe(DECODES, TRUTH.of(DECODES))
    chunk = StepShape(512, 0, 512, 512 * 512)
    fit.observe(chunk, 1.5 * TRUTH.of(chunk))
    assert worst(fit, TRUTH) < 0.1


def test_a_model_that_knows_equal_steps_only_still_predicts_varied_ones_within_a_factor() -> None:
    fit = FittedCost(slower(TRUTH, 2))
    rng = random.Random(4)
    for _ in range(20_000):
        fit.observe(DECODES, TRUTH.of(DECODES) * tenth(rng))
    assert fit.of(DECODES) == pytest.approx(TRUTH.of(DECODES), rel=0.05)
    assert worst(fit, TRUTH) < 1.1  # prompts as the prior had them: twice the truth
    observe(fit, TRUTH, 300, seed=8, noise=tenth)
    assert worst(fit, TRUTH) < 0.25


@pytest.mark.parametrize("factor", [5.0, 50.0, 5000.0])
def test_one_step_held_up_by_a_busy_machine_hardly_shows(factor: float) -> None:
    fit = FittedCost()
    observe(fit, TRUTH, 2000)
    before = fit.of(DECODES)
    fit.observe(DECODES, factor * TRUTH.of(DECODES))
    assert fit.of(DECODES) == pytest.approx(before, rel=0.01)


def test_a_hundredth_of_the_steps_held_up_does_not_shift_the_fit() -> None:
    fit = FittedCost()
    observe(fit, TRUTH, 4000, noise=lambda rng: tenth(rng) * (50 if rng.random() < 0.01 else 1))
    assert worst(fit, TRUTH) < 0.08


def test_a_first_step_that_warms_caches_is_overcome() -> None:
    fit = FittedCost(TRUTH)
    fit.observe(DECODES, 50 * TRUTH.of(DECODES))
    observe(fit, TRUTH, 100, noise=tenth)
    assert worst(fit, TRUTH) < 0.25


@pytest.mark.parametrize("seed", range(5))
def test_no_coefficient_is_ever_negative_or_infinite(seed: int) -> None:
    """Times that have nothing to do with the shapes, from nothing to minutes."""
    fit = FittedCost()
    rng = random.Random(seed)
    for shape in itertools.islice(shapes(seed), 3000):
        fit.observe(shape, rng.choice([0.0, 1e-9, 1.0 / (1 + shape.prefill), 1e-3, 300.0]))
        values = [getattr(fit.coefficients, name) for name in NAMES]
        assert all(0 <= value < 1e6 for value in values)


def test_larger_steps_that_take_less_time_do_not_make_a_coefficient_negative() -> None:
    fit = FittedCost()
    for decodes in itertools.islice(itertools.cycle(range(1, 65)), 2000):
        fit.observe(StepShape(0, decodes, 100 * decodes, 0), 0.1 - 0.001 * decodes)
    assert fit.seconds(0, 64, 6400, 0) >= fit.seconds(0, 1, 100, 0) > 0.04


def test_steps_that_take_no_time_are_learned_too() -> None:
    fit = FittedCost()
    observe(fit, LinearCost(), 1000)
    assert fit.of(DECODES) < 1e-4
    observe(fit, TRUTH, 3000)
    assert fit.of(DECODES) == pytest.approx(TRUTH.of(DECODES), rel=0.1)


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_a_time_that_is_none_is_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match="a step cannot take"):
        FittedCost().observe(DECODES, seconds)


def test_a_negative_prior_is_refused() -> None:
    with pytest.raises(ValueError, match="less than nothing"):
        FittedCost(LinearCost(base=-1.0))


# ------------------------------------------------------------------------ what it says of itself


def test_the_error_is_one_before_the_first_step_and_nothing_for_a_perfect_model() -> None:
    fit = FittedCost(TRUTH)
    assert fit.relative_error == 1.0
    observe(fit, TRUTH, 500)
    assert fit.relative_error == pytest.approx(0.0, abs=1e-6)


def test_the_error_is_mean_absolute_error_over_mean_time() -> None:
    fit = FittedCost(TRUTH)
    observe(fit, TRUTH, 3000, noise=lambda rng: rng.choice([0.8, 1.2]))
    assert fit.relative_error == pytest.approx(0.2, rel=0.15)


def test_the_error_forgets() -> None:
    fit = FittedCost(TRUTH)
    observe(fit, slower(TRUTH, 3), 50)
    observe(fit, slower(TRUTH, 3), 1500)
    assert fit.relative_error < 0.02


@pytest.mark.parametrize("seed", range(3))
def test_the_epoch_stays_while_nothing_changes(seed: int) -> None:
    fit = FittedCost()
    observe(fit, TRUTH, 2000, seed, tenth)
    epoch = fit.epoch
    observe(fit, TRUTH, 8000, seed + 10, tenth)
    assert fit.epoch == epoch


def test_the_epoch_changes_rarely_while_the_prior_is_outgrown() -> None:
    fit = FittedCost(slower(TRUTH, 10))
    observe(fit, TRUTH, 1000, noise=tenth)
    assert 1 <= fit.epoch <= 4


@pytest.mark.parametrize(
    "changed", [slower(TRUTH, 1.2), slower(TRUTH, 0.8), scaled(TRUTH, prompt_token=1.5)]
)
def test_the_epoch_changes_after_a_lasting_change(changed: LinearCost) -> None:
    fit = FittedCost()
    observe(fit, TRUTH, 2000, noise=tenth)
    epoch = fit.epoch
    observe(fit, changed, 1000, seed=11, noise=tenth)
    assert epoch < fit.epoch <= epoch + 6


def test_a_change_in_rare_steps_is_not_drowned_by_the_frequent_ones() -> None:
    """One step in fifty has a prompt, and prompts become twice as dear."""
    fit = FittedCost(TRUTH)
    chunk = StepShape(512, 0, 512, 512 * 512)
    dearer = scaled(TRUTH, prompt_token=2, chunk_context=2)
    for truth in (TRUTH, dearer):
        epoch = fit.epoch
        for step in range(5000):
            shape = DECODES if step % 50 else chunk
            fit.observe(shape, truth.of(shape))
    assert fit.epoch > epoch


def test_the_epoch_says_that_a_coefficient_moved_by_more_than_five_percent() -> None:
    fit = FittedCost(slower(TRUTH, 3))
    at_change, epoch = fit.coefficients, fit.epoch
    changes = 0
    rng = random.Random(7)
    for shape in itertools.islice(shapes(7), 3000):
        fit.observe(shape, TRUTH.of(shape) * tenth(rng))
        if fit.epoch != epoch:
            now = fit.coefficients
            moves = [abs(getattr(now, n) / getattr(at_change, n) - 1) for n in NAMES]
            assert max(moves) > 0.05
            at_change, epoch, changes = now, fit.epoch, changes + 1
    assert changes > 0


# ------------------------------------------------------------------------ shapes and the simulator


class Shapes(SimulatedBackend):
    """A backend that remembers the shapes of its batches."""

    def __init__(self) -> None:
        super().__init__(LinearCost(), 64)
        self.seen: list[StepShape] = []

    def submit(self, batch: Batch) -> int:
        self.seen.append(batch.shape)
        return super().submit(batch)


def test_a_shape_counts_what_a_batch_holds() -> None:
    backend = Shapes()
    harness = Harness(backend=backend, budget=64)
    harness.submit(20, max_tokens=8)
    harness.submit(33, max_tokens=8)
    harness.step()
    harness.submit(100, max_tokens=8)
    harness.step()
    harness.step()
    assert backend.seen == [
        StepShape(prefill=53, decodes=0, kv_read=20 + 33, chunk_context=20 * 20 + 33 * 33),
        StepShape(prefill=62, decodes=2, kv_read=21 + 34 + 62, chunk_context=62 * 62),
        StepShape(prefill=38, decodes=2, kv_read=22 + 35 + 100, chunk_context=38 * 100),
    ]


def test_a_fitted_model_drives_the_simulated_backend_which_takes_the_predicted_times() -> None:
    fit = FittedCost()
    observe(fit, TRUTH, 500, noise=tenth)
    model = fit.coefficients
    clock = VirtualClock()
    harness = Harness(backend=SimulatedBackend.virtual(model, 64, clock), budget=32)
    harness.clock = harness.engine.clock = clock
    harness.submit(40, max_tokens=3)
    times = [clock.now()]
    while harness.engine.step(harness.mail):
        harness.mail = []
        times.append(clock.now())
    predicted = [
        fit.seconds(prefill=32, decodes=0, kv_read=32, chunk_context=32 * 32),
        fit.seconds(prefill=8, decodes=0, kv_read=40, chunk_context=8 * 40),
        fit.seconds(prefill=0, decodes=1, kv_read=41, chunk_context=0),
        fit.seconds(prefill=0, decodes=1, kv_read=42, chunk_context=0),
    ]
    taken = [after - before for before, after in itertools.pairwise(times)]
    assert taken == pytest.approx(predicted)


def test_fixed_coefficients_learn_nothing() -> None:
    observe(TRUTH, slower(TRUTH, 2), 100)
    assert TRUTH.relative_error == 0.0
    assert slower(PRIOR, 1.0).of(DECODES) == PRIOR.of(DECODES)
