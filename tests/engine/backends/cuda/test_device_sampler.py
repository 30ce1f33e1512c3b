"""Sampling on a device: what the CPU's sampler gives for the same rows, without waiting."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cpu_device import CPUDevice
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from engine.backends.cuda.sampler import DeviceSampler
from engine.backends.sampler import sample, score
from engine.controls import RowControls, Sampled, SampleRow, ScoredRow
from engine.errors import RowFault

VOCAB = 50
GREEDY = RowControls(temperature=0.0)


def on_device(
    logits: Tensor, rows: Sequence[SampleRow], scored: Sequence[ScoredRow] = ()
) -> Sampled:
    pending = DeviceSampler(CPUDevice()).sample(logits, rows, scored)
    sampled = pending.collect()
    assert sampled.tokens == pending.tokens.tolist()
    return sampled


def random_logits(rows: int, seed: int = 0, vocab: int = VOCAB, spread: float = 2.0) -> Tensor:
    values = np.random.default_rng(seed).normal(0, spread, (rows, vocab))
    return torch.from_numpy(values.astype(np.float32))


def row(controls: RowControls, position: int = 0, **fields: Any) -> SampleRow:
    return SampleRow(controls, 0, position, [3, 4, 4, 5][:position], 1, **fields)


def words(allowed: Sequence[int], vocab: int = VOCAB) -> np.ndarray:
    bits = np.zeros(-(-vocab // 32) * 32, dtype=bool)
    bits[list(allowed)] = True
    return np.packbits(bits, bitorder="little").view(np.uint32)


# ── the CPU's tokens ──────────────────────────────────────────────────────────────────────────


def tokens_of(vocab: int) -> st.SearchStrategy[int]:
    return st.integers(0, vocab - 1)


def maybe(default: Any, others: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.just(default) | others


@st.composite
def controls_of(draw: st.DrawFn, vocab: int) -> RowControls:
    token = tokens_of(vocab)
    ids = st.frozensets(token, max_size=3)
    return RowControls(
        temperature=draw(st.sampled_from([0.0, 1.0, 0.3, 1.5, 40.0, 1e-6, 5e-324])),
        top_k=draw(maybe(0, st.integers(-1, vocab + 1))),
        top_p=draw(maybe(1.0, st.floats(0.0, 1.0) | st.just(1 - 2**-53))),
        min_p=draw(st.sampled_from([0.0, 0.0, 1.0]) | st.floats(0.0, 1.0)),
        seed=draw(st.integers(-(2**64), 2**64)),
        logit_bias=draw(maybe({}, st.dictionaries(token, st.floats(-100, 100), max_size=4))),
        allowed_ids=draw(maybe(None, st.frozensets(token, max_size=6))),
        presence_penalty=draw(maybe(0.0, st.floats(-2, 2))),
        frequency_penalty=draw(maybe(0.0, st.floats(-2, 2))),
        repetition_penalty=draw(maybe(1.0, st.floats(0.5, 2))),
        min_tokens=draw(maybe(0, st.integers(0, 6))),
        eos_ids=draw(ids),
        stop_ids=draw(ids),
        ignore_eos=draw(st.booleans()),
        bad_words=draw(maybe((), st.lists(st.tuples(token) | st.tuples(token, token)).map(tuple))),
        logprobs=draw(maybe(None, st.integers(0, vocab + 1))),
        beams=draw(maybe(0, st.integers(1, 4))),
    )


@st.composite
def rows_of(draw: st.DrawFn, vocab: int) -> SampleRow:
    history = draw(st.lists(tokens_of(vocab), max_size=12))
    mask = draw(maybe(None, st.lists(tokens_of(vocab), min_size=1).map(lambda t: words(t, vocab))))
    prompt = draw(st.integers(0, len(history)))
    controls = draw(controls_of(vocab))
    return SampleRow(controls, draw(st.integers(0, 3)), len(history), history, prompt, mask)


@st.composite
def batches(draw: st.DrawFn) -> tuple[Tensor, list[SampleRow]]:
    vocab = draw(st.sampled_from([3, 32, 33, 50, 300]))
    rows = draw(st.lists(rows_of(vocab), min_size=1, max_size=5))
    seed, spread = draw(st.integers(0, 2**32)), draw(st.sampled_from([0.01, 2.0, 9.0]))
    dtype = draw(st.sampled_from([torch.float32, torch.bfloat16]))
    return random_logits(len(rows), seed, vocab, spread).to(dtype), rows


def outcome(sampler: Any, logits: Tensor, rows: Sequence[SampleRow]) -> Sampled | tuple[Any, str]:
    try:
        return sampler(logits, rows)
    except RowFault as fault:
        return fault.rows, fault.reason


@given(batches())
def test_a_batch_gives_what_the_cpu_sampler_gives_or_the_same_fault(batch):
    logits, rows = batch
    before = logits.clone()
    mine, expected = outcome(on_device, logits, rows), outcome(sample, logits.float(), rows)
    assert torch.equal(logits, before)
    if not isinstance(expected, Sampled):
        assert mine == expected
        return
    assert isinstance(mine, Sampled)
    assert mine.tokens == expected.tokens
    for one, other in zip(mine.logprobs, expected.logprobs, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            assert one.logprob == pytest.approx(other.logprob, abs=1e-9)
            assert [v for _, v in one.top] == pytest.approx([v for _, v in other.top], abs=1e-9)
    assert set(mine.candidates) == set(expected.candidates)
    for i, candidates in expected.candidates.items():
        scores = [candidate.score for candidate in mine.candidates[i]]
        assert scores == pytest.approx([one.score for one in candidates], abs=1e-6)


SHAPES = {
    "all of it": {},
    "top_k": {"top_k": 40},
    "top_p": {"top_p": 0.95},
    "all filters": {"top_k": 200, "top_p": 0.99, "min_p": 1e-4, "temperature": 1.3},
}


@pytest.mark.parametrize("name", SHAPES)
def test_of_a_thousand_draws_from_bfloat16_none_is_another_than_the_cpu_samplers(name: str):
    controls = [RowControls(seed=seed, **SHAPES[name]) for seed in range(1000)]
    rows = [row(each) for each in controls]
    logits = random_logits(1000, seed=7, vocab=700).bfloat16()
    mine, expected = on_device(logits, rows).tokens, sample(logits.float(), rows).tokens
    assert sum(one != other for one, other in zip(mine, expected, strict=True)) == 0
    assert len(set(mine)) > 100


@pytest.mark.parametrize("name", SHAPES)
def test_a_vocabulary_of_128k_gives_the_cpu_samplers_tokens(name: str):
    rows = [row(RowControls(seed=seed, **SHAPES[name])) for seed in range(3)]
    logits = random_logits(3, vocab=128_256)
    assert on_device(logits, rows).tokens == sample(logits, rows).tokens


def test_tokens_that_tie_with_the_last_one_kept_are_kept_too():
    logits = torch.tensor([[1.0, -0.0, 1.0, 0.0]]).expand(64, -1)
    for controls, kept in (
        ({"min_p": 1.0}, {0, 2}),
        ({"top_p": 1e-9}, {0, 2}),
        ({"top_k": 3}, {0, 1, 2, 3}),
        ({"top_p": 0.8}, {0, 1, 2, 3}),
    ):
        rows = [row(RowControls(seed=seed, **controls)) for seed in range(64)]
        assert set(on_device(logits, rows).tokens) == kept


def test_equal_logits_of_a_large_vocabulary_do_not_overflow_their_sum():
    vocab, controls = 1 << 18, [RowControls(seed=seed) for seed in range(8)]
    tokens = on_device(torch.zeros(8, vocab), [row(each) for each in controls]).tokens
    assert tokens == sample(torch.zeros(8, vocab), [row(each) for each in controls]).tokens
    assert max(tokens) > vocab // 2


# ── whatever is beside a row ──────────────────────────────────────────────────────────────────

MIXED = [
    RowControls(seed=1),
    GREEDY,
    RowControls(seed=2, top_k=5, temperature=0.7),
    RowControls(seed=3, top_p=0.8, logit_bias={4: 2.0}, logprobs=2),
    replace(GREEDY, repetition_penalty=1.5, frequency_penalty=0.3),
    RowControls(seed=4, min_p=0.1, allowed_ids=frozenset({1, 2, 3, 9})),
    replace(GREEDY, beams=3, logprobs=0),
]


@settings(max_examples=40)
@given(st.permutations(range(len(MIXED))), st.integers(1, len(MIXED)))
def test_a_row_gives_the_same_in_any_place_of_any_batch(order: list[int], count: int):
    rows, logits = [row(each, 4) for each in MIXED], random_logits(len(MIXED))
    together, kept = on_device(logits, rows), order[:count]
    part = on_device(logits[kept], [rows[i] for i in kept])
    assert part.tokens == [together.tokens[i] for i in kept]
    assert part.logprobs == [together.logprobs[i] for i in kept]
    beams = {kept.index(i): found for i, found in together.candidates.items() if i in kept}
    assert part.candidates == beams


# ── prompts ───────────────────────────────────────────────────────────────────────────────────


def test_prompts_are_scored_as_on_the_cpu_behind_the_rows_that_are_sampled():
    targets = [int(t) for t in np.random.default_rng(3).integers(0, VOCAB, 150)]
    scored = [ScoredRow(4, 0, targets[:140], 3), ScoredRow(7, 2, targets[140:], 0)]
    logits = random_logits(152)
    sampled = on_device(logits, [row(GREEDY), row(RowControls(seed=1))], scored)
    assert sampled.tokens == sample(logits[:2], [row(GREEDY), row(RowControls(seed=1))]).tokens
    for mine, expected in zip(sampled.prompt_logprobs, score(logits[2:], scored), strict=True):
        assert [each.rank for each in mine] == [each.rank for each in expected]
        for one, other in zip(mine, expected, strict=True):
            assert one.logprob == pytest.approx(other.logprob, abs=1e-9)
            assert [token for token, _ in one.top] == [token for token, _ in other.top]


def test_a_batch_that_only_scores_has_no_tokens():
    sampled = on_device(random_logits(1), [], [ScoredRow(0, 0, [5], 1)])
    assert (sampled.tokens, sampled.logprobs) == ([], [])
    assert len(sampled.prompt_logprobs[0]) == 1


# ── faults ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("controls", [GREEDY, RowControls(top_p=0.9, top_k=7), MIXED[3]])
def test_rows_whose_logits_are_not_finite_are_named_when_they_are_collected(value, controls):
    logits = random_logits(5)
    logits[1, 40] = logits[3, 0] = value
    pending = DeviceSampler(CPUDevice()).sample(logits, [row(controls, 4)] * 5)
    assert ((pending.tokens >= 0) & (pending.tokens < VOCAB)).all()
    with pytest.raises(RowFault, match="NaN or infinite") as caught:
        pending.collect()
    assert caught.value.rows == (1, 3)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_of_which_nothing_is_allowed_is_named_by_its_place_in_the_batch(temperature: float):
    nothing = RowControls(temperature=temperature, top_p=0.5, allowed_ids=frozenset())
    rows = [row(GREEDY), row(nothing), row(RowControls(seed=3))]
    pending = DeviceSampler(CPUDevice()).sample(random_logits(3), rows, (), [2, 5, 6])
    assert ((pending.tokens >= 0) & (pending.tokens < VOCAB)).all()
    with pytest.raises(RowFault, match="forbid every token") as caught:
        pending.collect()
    assert caught.value.rows == (5,)


def test_a_prompt_whose_logits_are_not_finite_is_named():
    logits = random_logits(4)
    logits[3, 1] = math.nan
    scored = [ScoredRow(1, 0, [0, 1], 0), ScoredRow(6, 0, [2], 0)]
    pending = DeviceSampler(CPUDevice()).sample(logits, [row(GREEDY)], scored, [9])
    with pytest.raises(RowFault) as caught:
        pending.collect()
    assert caught.value.rows == (6,)


@pytest.mark.parametrize("token", [-1, VOCAB, 2**31, 2**40])
@pytest.mark.parametrize(
    "controls",
    [
        lambda token: RowControls(logit_bias={token: 1.0}),
        lambda token: RowControls(allowed_ids=frozenset({token})),
        lambda token: RowControls(bad_words=((token,),)),
        lambda token: RowControls(min_tokens=9, stop_ids=frozenset({token})),
    ],
)
def test_a_token_that_is_none_never_reaches_the_device(controls: Any, token: int):
    with pytest.raises(IndexError):
        DeviceSampler(CPUDevice()).sample(random_logits(2), [row(controls(token)), row(GREEDY)])


@pytest.mark.parametrize("token", [-1, VOCAB, 2**31])
def test_a_history_with_a_token_that_is_none_never_reaches_the_device(token: int):
    for controls in ({"repetition_penalty": 2.0}, {"presence_penalty": 1.0}):
        broken = SampleRow(replace(GREEDY, **controls), 0, 1, [token], 0)
        with pytest.raises(IndexError):
            DeviceSampler(CPUDevice()).sample(random_logits(1), [broken])


# ── nothing waits ─────────────────────────────────────────────────────────────────────────────


class NowhereDevice(CPUDevice):
    """A device whose tensors have no numbers: nothing that is done with them can look at one.

    Tensors of the host and of this device do not go together either, as with a GPU.
    """

    def __init__(self) -> None:
        super().__init__()
        self.torch_device = torch.device("meta")

    def upload(self, array: np.ndarray) -> Tensor:
        return super().upload(array).to("meta")


EVERYTHING = [
    *MIXED,
    RowControls(seed=8, top_k=9, top_p=0.9, min_p=0.1, presence_penalty=0.5, min_tokens=9),
    RowControls(seed=9, bad_words=((4, 4), (5,)), eos_ids=frozenset({6}), min_tokens=7),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "controls", [EVERYTHING, [GREEDY], [RowControls(top_p=0.9)], [replace(GREEDY, beams=2)]]
)
def test_sampling_looks_at_no_number_of_the_device(controls: list[RowControls], dtype: Any):
    device = NowhereDevice()
    rows = [row(each, 4, mask=words([1, 7])) for each in controls] + [row(controls[0], 2)]
    logits = torch.empty(len(rows) + 3, VOCAB, dtype=dtype, device="meta")
    pending = DeviceSampler(device).sample(logits, rows, [ScoredRow(0, 0, [1, 2, 3], 2)])
    assert pending.tokens.shape == (len(rows),)
    assert pending.tokens.dtype == torch.int64
    assert device.waits == 0
    assert device.trace.count("upload") == 1


def test_greedy_rows_upload_nothing_and_download_their_tokens_alone():
    device = CPUDevice()
    sampler = DeviceSampler(device)
    pending = sampler.sample(random_logits(9), [row(GREEDY)] * 8 + [row(RowControls(top_k=1))])
    assert device.trace == ["download"]
    assert pending.collect().tokens == random_logits(9).argmax(-1).tolist()
    assert device.trace == ["download", "wait"]


class Launches(TorchDispatchMode):
    """Counts the operators that are called while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("controls", [[GREEDY], [RowControls(top_p=0.9)], EVERYTHING])
def test_many_rows_take_no_more_launches_than_few(controls: list[RowControls]):
    counts = []
    for times in (1, 20):
        rows = [row(replace(each, seed=i), 4) for i in range(times) for each in controls]
        with Launches() as launches:
            DeviceSampler(CPUDevice()).sample(random_logits(len(rows)), rows)
        counts.append(launches.count)
    assert counts[0] == counts[1] > 0


# ── the distribution ──────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.parametrize("controls", [{}, {"temperature": 3.0}, {"top_k": 6}, {"top_p": 0.8}])
def test_a_hundred_thousand_draws_follow_the_distribution_of_what_is_left(controls: Any):
    logits, count = random_logits(1), 100_000
    rows = [SampleRow(RowControls(seed=3, **controls), 0, i, (), 0) for i in range(count)]
    counts = np.bincount(on_device(logits.expand(count, -1), rows).tokens, minlength=VOCAB)
    likely = (logits[0].double() / controls.get("temperature", 1.0)).softmax(-1).numpy()
    best = np.argsort(-likely)
    if "top_k" in controls:
        likely[best[controls["top_k"] :]] = 0
    if "top_p" in controls:
        likely[best[np.cumsum(likely[best]) - likely[best] >= controls["top_p"]]] = 0
    expected = likely / likely.sum() * count
    assert not counts[expected == 0].any()
    kept = expected > 5
    statistic = ((counts - expected)[kept] ** 2 / expected[kept]).sum()
    freedom = kept.sum() - 1
    assert (statistic - freedom) / math.sqrt(2 * freedom) < 4
