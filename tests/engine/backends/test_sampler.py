"""Sampling: the distribution, what each control does, and what a draw depends on."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from engine.backends import sampler
from engine.backends.sampler import sample, uniforms
from engine.controls import RowControls, SampleRow
from engine.errors import RowFault

VOCAB = 50
INT64 = np.iinfo(np.int64)


def random_logits(rows: int = 1, seed: int = 0, vocab: int = VOCAB) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.normal(0, 2, (rows, vocab)).astype(np.float32))


def row(controls: RowControls, position: int = 0, index: int = 0) -> SampleRow:
    return SampleRow(controls, index, position, (), 0)


def draws(logits: torch.Tensor, controls: RowControls, count: int = 1500) -> np.ndarray:
    """How often each token comes at `count` positions, from logits [1, vocab]."""
    rows = [row(controls, position) for position in range(count)]
    tokens = sample(logits.expand(count, -1), rows).tokens
    return np.bincount(tokens, minlength=logits.shape[1])


def kept(logits: torch.Tensor, controls: RowControls) -> set[int]:
    """The tokens that can be drawn."""
    return set(np.flatnonzero(draws(logits, controls)).tolist())


def best(logits: torch.Tensor, count: int) -> set[int]:
    return set(logits[0].argsort(descending=True)[:count].tolist())


def from_probabilities(*probabilities: float) -> torch.Tensor:
    return torch.tensor([probabilities]).log()


def unfairness(counts: np.ndarray, probabilities: np.ndarray) -> float:
    """Chi-square, in standard deviations above its mean: of a fair draw it is hardly ever 4."""
    expected = probabilities * counts.sum()
    likely = expected > 5
    statistic = ((counts - expected)[likely] ** 2 / expected[likely]).sum()
    freedom = likely.sum() - 1
    return float((statistic - freedom) / math.sqrt(2 * freedom))


# ── the distribution ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("seed", [0, 1, 12345])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_draws_follow_the_softmax_of_logits_over_temperature(temperature: float, seed: int):
    logits = random_logits()
    counts = draws(logits, RowControls(temperature=temperature, seed=seed), 8_000)
    assert unfairness(counts, (logits[0] / temperature).softmax(-1).numpy()) < 4


def test_filtered_draws_follow_the_distribution_of_what_is_left():
    logits = random_logits()
    counts = draws(logits, RowControls(top_k=6, seed=3), 8_000)
    probabilities = logits[0].softmax(-1).numpy().copy()
    probabilities[[t for t in range(VOCAB) if t not in best(logits, 6)]] = 0
    assert unfairness(counts, probabilities / probabilities.sum()) < 4
    assert set(np.flatnonzero(counts)) == best(logits, 6)


@pytest.mark.parametrize("vary", ["seed", "index", "position"])
def test_uniforms_are_even_and_unrelated_along_each_counter(vary: str):
    base = {"seed": 5, "index": 0, "position": 7}
    counters = [base | {vary: i} for i in range(8_000)]
    numbers = uniforms([row(RowControls(seed=c.pop("seed")), **c) for c in counters])
    assert ((numbers >= 0) & (numbers < 1)).all()
    histogram = np.bincount((numbers * 20).astype(int), minlength=20)
    assert unfairness(histogram, np.full(20, 0.05)) < 4
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.03


def test_the_random_numbers_never_change():
    counters = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)]
    rows = [row(RowControls(seed=seed), position, index) for seed, index, position in counters]
    assert uniforms(rows).tolist() == [
        0.13870941014555427,
        0.6935121390102292,
        0.2691303195904541,
        0.18436667429957676,
    ]


# ── what a draw depends on ────────────────────────────────────────────────────────────────────


def mixed_rows() -> list[SampleRow]:
    controls = [
        RowControls(seed=1),
        RowControls(temperature=0),
        RowControls(seed=2, top_k=5, temperature=0.7),
        RowControls(seed=3, top_p=0.8, logit_bias={4: 2.0}),
        RowControls(seed=4, min_p=0.1, logprobs=2),
        RowControls(seed=5, top_k=20, top_p=0.5, min_p=0.01, temperature=2.0),
        RowControls(seed=6, allowed_ids=frozenset({1, 2, 3})),
        RowControls(temperature=0, logprobs=0),
    ]
    return [row(c, position=i * 3, index=i % 2) for i, c in enumerate(controls)]


def test_a_row_draws_the_same_token_alone_and_in_any_batch():
    rows = mixed_rows()
    logits = random_logits(len(rows))
    together = sample(logits, rows)
    for order in ([7, 6, 5, 4, 3, 2, 1, 0], [3, 0, 5], [1], [2], [6, 4]):
        part = sample(logits[order], [rows[i] for i in order])
        assert part.tokens == [together.tokens[i] for i in order]
        assert part.logprobs == [together.logprobs[i] for i in order]


@pytest.mark.parametrize("other", [{"seed": 8}, {"index": 1}, {"position": 6}])
def test_seed_index_and_position_each_change_the_draws(other: dict[str, int]):
    base = {"seed": 7, "index": 0, "position": 5}

    def tokens(counter: dict[str, int]) -> Sequence[int]:
        rows = [
            row(RowControls(seed=counter["seed"]), counter["position"] + 100 * i, counter["index"])
            for i in range(50)
        ]
        return sample(torch.zeros(50, VOCAB), rows).tokens

    assert tokens(base) == tokens(base)
    assert tokens(base) != tokens(base | other)


@pytest.mark.parametrize("seed", [-1, INT64.min, INT64.max, 2**64 - 1, -(2**70)])
def test_any_integer_is_a_seed(seed: int):
    logits = torch.zeros(1, VOCAB)
    counts = draws(logits, RowControls(seed=seed))
    assert unfairness(counts, np.full(VOCAB, 1 / VOCAB)) < 4


def test_logits_are_left_as_they_were():
    rows = mixed_rows()
    logits = random_logits(len(rows))
    before = logits.clone()
    sample(logits, rows)
    assert torch.equal(logits, before)


# ── greedy ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "controls",
    [
        RowControls(temperature=0),
        RowControls(temperature=0, top_k=7, top_p=0.1, min_p=0.9, seed=9, logprobs=3),
        RowControls(top_k=1, temperature=5.0),
        RowControls(temperature=1e-6),
        RowControls(temperature=5e-324),
        RowControls(top_p=1e-9),
        RowControls(min_p=1.0),
    ],
)
def test_controls_that_leave_only_the_best_token(controls: RowControls):
    logits = random_logits(30)
    rows = [row(controls, position) for position in range(30)]
    assert sample(logits, rows).tokens == logits.argmax(-1).tolist()


def test_greedy_takes_the_first_of_equal_logits():
    logits = torch.zeros(1, VOCAB)
    for controls in (RowControls(temperature=0), RowControls(top_k=1)):
        assert sample(logits, [row(controls)]).tokens == [0]


def test_huge_logits_at_a_tiny_temperature_do_not_overflow():
    logits = torch.tensor([[3e38, -3e38, 2.9e38, 0.0]])
    assert kept(logits, RowControls(temperature=1e-6)) == {0}


# ── filters ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("top_k", [2, 5, 49])
def test_top_k_keeps_the_k_best(top_k: int):
    logits = random_logits() / 10
    assert kept(logits, RowControls(top_k=top_k)) == best(logits, top_k)


@pytest.mark.parametrize(
    "controls",
    [
        RowControls(top_k=0),
        RowControls(top_k=VOCAB),
        RowControls(top_k=10**9),
        RowControls(top_p=1.0),
        RowControls(top_p=1 - 2**-53),
        RowControls(min_p=0.0),
    ],
)
def test_controls_that_keep_everything(controls: RowControls):
    logits = random_logits()
    assert (draws(logits, controls) == draws(logits, RowControls())).all()


@pytest.mark.parametrize(
    ("top_p", "expected"),
    [(0.3, {0}), (0.45, {0}), (0.55, {0, 1}), (0.85, {0, 1, 2}), (0.95, {0, 1, 2, 3})],
)
def test_top_p_keeps_the_smallest_best_set_that_reaches_p(top_p: float, expected: set[int]):
    logits = from_probabilities(0.5, 0.3, 0.12, 0.08)
    assert kept(logits, RowControls(top_p=top_p)) == expected


def test_top_p_is_a_share_of_what_top_k_left():
    logits = from_probabilities(0.4, 0.25, 0.2, 0.15)
    # Of the two best, 0.4 / 0.65 = 0.615 is enough for 0.6; of all four it is not.
    assert kept(logits, RowControls(top_k=2, top_p=0.6)) == {0}
    assert kept(logits, RowControls(top_p=0.6)) == {0, 1}


@pytest.mark.parametrize(
    ("min_p", "expected"), [(0.15, {0, 1, 2}), (0.3, {0, 1}), (0.7, {0}), (1.0, {0})]
)
def test_min_p_is_relative_to_the_best_token(min_p: float, expected: set[int]):
    logits = from_probabilities(0.5, 0.3, 0.1, 0.05, 0.05)
    assert kept(logits, RowControls(min_p=min_p)) == expected


def test_tokens_that_tie_with_the_last_one_kept_are_kept_too():
    logits = from_probabilities(0.4, 0.2, 0.2, 0.2)
    assert kept(logits, RowControls(top_k=2)) == {0, 1, 2, 3}
    assert kept(logits, RowControls(top_p=0.5)) == {0, 1, 2, 3}


def test_filters_look_at_probabilities_after_temperature():
    logits = from_probabilities(0.6, 0.3, 0.1)
    assert kept(logits, RowControls(top_p=0.6)) == {0}
    assert kept(logits, RowControls(top_p=0.6, temperature=10.0)) == {0, 1}
    assert kept(logits, RowControls(min_p=0.5, temperature=10.0)) == {0, 1, 2}


@pytest.mark.parametrize("top_p", [0.2, 0.9, 0.999])
def test_a_nucleus_is_found_however_few_tokens_are_looked_at_first(top_p: float):
    logits = random_logits(8, vocab=4000) / 4
    probabilities = logits.double().softmax(-1)
    mass = torch.full((8, 1), top_p, dtype=torch.float64)
    at_once, *in_steps = (sampler._last_of_mass(probabilities, mass, n) for n in (4000, 3, 64))
    kept = (probabilities * (probabilities >= at_once)).sum(-1, keepdim=True)
    assert (kept >= mass).all()
    assert (kept - at_once < mass).all()
    for threshold in in_steps:
        assert torch.equal(threshold, at_once)


# ── before temperature ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_bias_of_a_hundred_forces_and_forbids(temperature: float):
    logits = random_logits()
    first = int(logits.argmax())
    controls = RowControls(temperature=temperature)
    assert kept(logits, replace(controls, logit_bias={17: 100.0})) == {17}
    assert first not in kept(logits, replace(controls, logit_bias={first: -100.0}))


def test_bias_is_added_to_the_logits():
    logits = from_probabilities(0.5, 0.25, 0.25)
    counts = draws(logits, RowControls(logit_bias={1: math.log(2), 2: -math.log(5)}), 8_000)
    assert unfairness(counts, np.array([0.5, 0.5, 0.05]) / 1.05) < 4


def test_only_allowed_ids_are_drawn():
    logits = random_logits() / 10
    allowed = frozenset({3, 8, 21})
    assert kept(logits, RowControls(allowed_ids=allowed)) == allowed


def test_no_end_before_min_tokens():
    logits = torch.zeros(1, 4)
    logits[0, 1:3] = 5.0
    controls = RowControls(
        temperature=0, min_tokens=2, eos_ids=frozenset({1}), stop_ids=frozenset({2})
    )

    def token(generated: int) -> int:
        known = [0] * (3 + generated)
        return sample(logits, [SampleRow(controls, 0, len(known), known, 3)]).tokens[0]

    assert [token(generated) for generated in range(4)] == [0, 0, 1, 1]


def test_a_bad_word_is_not_completed():
    logits = torch.tensor([[0.0, 1.0, 3.0, 2.0]])
    controls = RowControls(temperature=0, bad_words=((1, 2), (3,)))

    def token(known: list[int]) -> int:
        return sample(logits, [SampleRow(controls, 0, len(known), known, 1)]).tokens[0]

    assert token([0]) == 2
    assert token([0, 1]) == 1


def test_penalties_follow_their_definitions():
    logits = torch.tensor([[2.0, 2.0, -1.0, 1.0, 0.0]])
    controls = RowControls(
        repetition_penalty=2.0, frequency_penalty=0.25, presence_penalty=0.5, temperature=0
    )
    known = [0, 2, 1, 1, 3]  # the first two are the prompt
    sampler._edit(logits, [SampleRow(controls, 0, 5, known, 2)])
    # 0 and 2: repetition alone; 1: twice generated; 3: once; 4: never seen.
    assert logits[0].tolist() == [1.0, 1.0 - 0.5 - 0.5, -2.0, 0.5 - 0.25 - 0.5, 0.0]


# ── log-probabilities ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "controls",
    [
        RowControls(temperature=0),
        RowControls(temperature=0.3, top_k=4),
        RowControls(temperature=4.0, logit_bias={9: 50.0}, min_p=0.2),
        RowControls(allowed_ids=frozenset({30}), repetition_penalty=3.0),
    ],
)
def test_logprobs_are_those_of_the_raw_logits(controls: RowControls):
    logits = random_logits()
    result = sample(logits, [row(replace(controls, logprobs=5))])
    raw = logits[0].double().log_softmax(-1)
    (logprobs,) = result.logprobs
    assert logprobs.logprob == pytest.approx(raw[result.tokens[0]].item())
    ids, values = zip(*logprobs.top, strict=True)
    assert list(ids) == raw.argsort(descending=True)[:5].tolist()
    assert values == pytest.approx(raw.sort(descending=True).values[:5].tolist())


def test_each_row_gets_as_many_logprobs_as_it_asks_for():
    counts = [None, 0, 3, None, 1, 10**6]
    rows = [row(RowControls(logprobs=count)) for count in counts]
    found = [each and len(each.top) for each in sample(random_logits(6), rows).logprobs]
    assert found == [None, 0, 3, None, 1, VOCAB]


# ── faults ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_that_is_not_finite_is_named(value: float, temperature: float):
    logits = random_logits(5)
    logits[1, 40] = logits[3, 0] = value
    rows = [row(RowControls(temperature=temperature)) for _ in range(5)]
    with pytest.raises(RowFault, match="NaN or infinite") as caught:
        sample(logits, rows)
    assert caught.value.rows == (1, 3)


def test_a_row_of_which_nothing_is_allowed_is_named():
    rows = [row(RowControls()), row(RowControls(allowed_ids=frozenset()))]
    with pytest.raises(RowFault, match="forbid every token") as caught:
        sample(random_logits(2), rows)
    assert caught.value.rows == (1,)


def test_no_rows_give_no_tokens():
    result = sample(torch.empty(0, VOCAB), [])
    assert (result.tokens, result.logprobs) == ([], [])


# ── candidates of beam searches ───────────────────────────────────────────────────────────────


def test_candidates_are_the_best_tokens_and_the_best_that_do_not_end_the_row():
    logits = random_logits(rows=3)
    order = logits.argsort(descending=True).tolist()
    ends = frozenset(order[0][:3])
    controls = RowControls(temperature=0.0, beams=4, stop_ids=ends)
    rows = [row(controls), row(RowControls()), row(replace(controls, beams=2))]
    sampled = sample(logits, rows)
    assert set(sampled.candidates) == {0, 2}
    assert [one.token for one in sampled.candidates[0]] == order[0][:7]
    going_on = [token for token in order[2] if token not in ends][:2]
    assert {one.token for one in sampled.candidates[2]} == {*order[2][:2], *going_on}
    logprobs = logits[0].double().log_softmax(dim=-1)
    for one in sampled.candidates[0]:
        assert one.score == one.logprob == pytest.approx(logprobs[one.token].item())


def test_controls_edit_the_scores_of_candidates_and_forbidden_tokens_are_none():
    logits = random_logits()
    best = logits[0].argsort(descending=True).tolist()
    controls = RowControls(
        temperature=0.0, beams=50, stop_ids=frozenset(best[:1]), min_tokens=1, logit_bias={5: -20.0}
    )
    candidates = {one.token: one for one in sample(logits, [row(controls)]).candidates[0]}
    assert set(candidates) == set(range(VOCAB)) - {best[0]}
    assert candidates[5].score == pytest.approx(candidates[5].logprob - 20)
    assert candidates[best[1]].score == candidates[best[1]].logprob, "not normalised again"


# ── when the largest logit is known ───────────────────────────────────────────────────────────

EDITING = RowControls(temperature=0, logprobs=2, logit_bias={7: 50.0})


@pytest.mark.parametrize("more", [(), (EDITING,)])
def test_knowing_the_largest_logits_changes_nothing(more: tuple[RowControls, ...]):
    greedy, drawn = RowControls(temperature=0), RowControls(seed=4, top_k=5, top_p=0.9)
    rows = [row(controls) for controls in (greedy, RowControls(seed=3), drawn, *more)]
    logits = random_logits(len(rows))
    largest = logits.argmax(dim=1).numpy().astype(np.int32)
    assert sample(logits, rows, largest) == sample(logits, rows)


@pytest.mark.parametrize("controls", [RowControls(temperature=0), EDITING])
def test_a_row_whose_largest_logit_is_no_number_is_at_fault(controls: RowControls):
    largest = np.array([4, -1, 6], np.int32)
    with pytest.raises(RowFault) as caught:
        sample(random_logits(3), [row(controls)] * 3, largest)
    assert caught.value.rows == (1,)
