"""Sampling controls over whole generations: rows beside each other, histories, masks, one pass."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

from engine.backends.sampler import sample
from engine.controls import RowControls, SampleRow, TokenLogprobs
from engine.errors import RowFault

VOCAB = 50
GREEDY = RowControls(temperature=0.0)
BLUE, SKY = 3, 4


@dataclass
class Continuation:
    """A sequence that a made-up model continues: its logits are a hash of the tokens so far."""

    controls: RowControls
    prompt: Sequence[int] = (BLUE, BLUE, BLUE, SKY)
    index: int = 0
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tokens = list(self.prompt)

    @property
    def generated(self) -> list[int]:
        return self.tokens[len(self.prompt) :]

    def row(self) -> SampleRow:
        return SampleRow(self.controls, self.index, len(self.tokens), self.tokens, len(self.prompt))

    def logits(self) -> torch.Tensor:
        seed = hash(tuple(self.tokens[-2:])) % 2**32
        values = np.random.default_rng(seed).normal(0, 2, VOCAB).astype(np.float32)
        values[[BLUE, SKY]] += 4  # so that it likes to repeat itself
        return torch.from_numpy(values)


def advance(sequences: Sequence[Continuation], steps: int) -> None:
    """Continue all of them by `steps` tokens, as rows of the same batches, in this order."""
    for _ in range(steps):
        logits = torch.stack([sequence.logits() for sequence in sequences])
        result = sample(logits, [sequence.row() for sequence in sequences])
        for sequence, token, logprobs in zip(
            sequences, result.tokens, result.logprobs, strict=True
        ):
            sequence.tokens.append(token)
            sequence.logprobs.append(logprobs)


def alone(controls: RowControls, steps: int, **fields: object) -> Continuation:
    sequence = Continuation(controls, **fields)
    advance([sequence], steps)
    return sequence


def mask_of(allowed: Sequence[int], vocab: int = VOCAB) -> np.ndarray:
    """The packed words of a mask that allows these tokens."""
    words = [0] * -(-vocab // 32)
    for token in allowed:
        words[token // 32] |= 1 << token % 32
    return np.array(words, dtype=np.uint32)


# ── rows beside each other ────────────────────────────────────────────────────────────────────

STEPS = 12
MIXED = [
    GREEDY,
    replace(GREEDY, repetition_penalty=1.8),
    replace(GREEDY, frequency_penalty=2.0),
    replace(GREEDY, presence_penalty=2.0, logprobs=2),
    replace(GREEDY, presence_penalty=-2.0, frequency_penalty=-2.0),
    RowControls(seed=11, repetition_penalty=0.7, bad_words=((BLUE, BLUE), (SKY,))),
    RowControls(seed=12, frequency_penalty=0.5, allowed_ids=frozenset(range(0, VOCAB, 3))),
    RowControls(seed=13, temperature=1.5, top_p=0.8, logit_bias={7: 3.0}, logprobs=0),
]


def same(found: Continuation, expected: Continuation) -> bool:
    return (found.tokens, found.logprobs) == (expected.tokens, expected.logprobs)


@pytest.fixture(scope="module")
def solo() -> list[Continuation]:
    return [alone(controls, STEPS) for controls in MIXED]


@pytest.mark.parametrize("order", ["given", "reversed", "shuffled"])
def test_each_row_continues_as_it_would_alone_whatever_stands_beside_it(solo, order: str):
    places = list(range(len(MIXED)))
    if order == "reversed":
        places.reverse()
    elif order == "shuffled":
        random.Random(1).shuffle(places)
    together = {place: Continuation(MIXED[place]) for place in places}
    advance(list(together.values()), STEPS)
    for place, sequence in together.items():
        assert same(sequence, solo[place]), MIXED[place]


@pytest.mark.parametrize("pair", [(0, 1), (1, 0), (0, 2), (2, 0)])
def test_a_penalty_does_not_leak_into_the_row_without_one(solo, pair: tuple[int, int]):
    together = [Continuation(MIXED[place]) for place in pair]
    advance(together, STEPS)
    for sequence, place in zip(together, pair, strict=True):
        assert same(sequence, solo[place])
    assert together[0].tokens != together[1].tokens, "the penalty made no difference to see"


def test_rows_that_come_and_go_leave_the_others_as_they_were(solo):
    early, late, middle = (Continuation(MIXED[place]) for place in (1, 0, 4))
    advance([early, middle], 4)
    advance([middle, late, early], 5)
    advance([late, early], STEPS - 9)
    advance([late], STEPS - len(late.generated))
    assert same(early, solo[1])
    assert same(late, solo[0])
    assert middle.tokens == solo[4].tokens[: len(middle.tokens)]


# ── which tokens the penalties count ──────────────────────────────────────────────────────────


def token(controls: RowControls, known: Sequence[int], prompt: int, logits: Sequence[float]) -> int:
    """The next token of one sequence, the first `prompt` of whose tokens are its prompt."""
    row = SampleRow(controls, 0, len(known), known, prompt)
    return sample(torch.tensor([logits]), [row]).tokens[0]


LOGITS = [1.0, 3.0, 2.0, 0.0]


@pytest.mark.parametrize(
    "penalty",
    [{"presence_penalty": 2.0}, {"frequency_penalty": 2.0}],
)
def test_presence_and_frequency_do_not_count_the_prompt(penalty):
    controls = replace(GREEDY, **penalty)
    assert token(controls, [1, 1, 1, 1], 4, LOGITS) == 1
    assert token(controls, [1, 1, 1, 1], 3, LOGITS) == 2


def test_presence_counts_a_token_once_and_frequency_each_time():
    known = [0, 1, 1, 1]
    assert token(replace(GREEDY, presence_penalty=0.9), known, 1, LOGITS) == 1
    assert token(replace(GREEDY, frequency_penalty=0.3), known, 1, LOGITS) == 1
    assert token(replace(GREEDY, frequency_penalty=0.35), known, 1, LOGITS) == 2


def test_repetition_counts_prompt_and_output_once():
    controls = replace(GREEDY, repetition_penalty=2.0)
    assert token(controls, [1], 1, LOGITS) == 2
    assert token(controls, [0, 1], 1, LOGITS) == 2
    assert token(replace(GREEDY, repetition_penalty=1.4), [1, 1, 1, 1], 4, LOGITS) == 1


def test_negative_penalties_favour_what_was_said():
    known = [0, 3]
    assert token(replace(GREEDY, presence_penalty=-2.0), known, 1, [0.0, 1.0, 0.5, 0.0]) == 3


@pytest.mark.parametrize(
    "neutral", [{"presence_penalty": 0.0, "frequency_penalty": -0.0, "repetition_penalty": 1.0}]
)
@pytest.mark.parametrize("base", [GREEDY, RowControls(seed=9), RowControls(seed=2, top_p=0.7)])
def test_a_neutral_penalty_is_none_at_all(base: RowControls, neutral):
    beside = [Continuation(replace(base, **neutral)), Continuation(MIXED[1])]
    advance(beside, STEPS)
    assert same(beside[0], alone(base, STEPS))


def test_a_token_id_that_is_none_cannot_reach_another_row():
    """A bug upstream must fail loudly, or hit the row that has it: never a neighbour."""
    logits = torch.zeros(2, 4)
    healthy = SampleRow(GREEDY, 0, 1, [1], 1)
    for wrong in (4, -1, 2**31):
        controls = replace(GREEDY, repetition_penalty=2.0)
        broken = SampleRow(controls, 0, 1, [wrong], 1)
        with pytest.raises((IndexError, RuntimeError)):
            sample(logits, [broken, healthy])


# ── the edges of temperature and the filters, over whole texts ────────────────────────────────


def texts(controls: RowControls, seeds: int = 10) -> set[tuple[int, ...]]:
    """What the same request gives under different seeds."""
    sequences = [Continuation(replace(controls, seed=seed)) for seed in range(seeds)]
    advance(sequences, 8)
    return {tuple(sequence.generated) for sequence in sequences}


@pytest.mark.parametrize(
    "controls",
    [
        RowControls(temperature=1.5),
        RowControls(temperature=2.0, top_p=1.0),
        RowControls(temperature=1.5, top_k=-1),
        RowControls(temperature=1.5, top_k=VOCAB),
        RowControls(temperature=1.5, top_k=10**9),
    ],
)
def test_controls_that_keep_all_tokens_give_other_texts_for_other_seeds(controls: RowControls):
    assert len(texts(controls)) > 1
    assert texts(controls) == texts(replace(controls, top_p=1.0, top_k=0, min_p=0.0))


@pytest.mark.parametrize(
    "controls",
    [
        replace(GREEDY, top_p=0.1),
        RowControls(temperature=1.5, top_k=1),
        RowControls(temperature=2.0, top_p=1e-9),
        RowControls(temperature=2.0, top_p=0.0),
        RowControls(temperature=1.5, min_p=1.0),
        RowControls(temperature=1e-6),
    ],
)
def test_controls_that_keep_one_token_give_the_greedy_text_for_every_seed(controls: RowControls):
    assert texts(controls) == texts(GREEDY, seeds=1)


# ── forbidden tokens ──────────────────────────────────────────────────────────────────────────


def test_a_bad_word_of_several_tokens_is_kept_out_wherever_it_begins():
    # The model wants 1 1 1 …: 1 1 1 must not be completed, also across the end of the prompt.
    controls = replace(GREEDY, bad_words=((1, 1, 1),))
    logits = [0.0, 3.0, 2.0, 0.0]
    assert token(controls, [0, 1], 1, logits) == 1
    assert token(controls, [0, 1, 1], 1, logits) == 2
    assert token(controls, [0, 1, 1], 3, logits) == 2
    assert token(controls, [1, 2, 1], 1, logits) == 1


def test_a_bad_word_longer_than_the_text_forbids_nothing():
    controls = replace(GREEDY, bad_words=((5, 6, 1, 1), (2, 3, 1)))
    assert token(controls, [1], 1, LOGITS) == 1
    assert token(controls, [], 0, LOGITS) == 1


def test_bad_words_that_share_their_beginning_are_each_kept_out():
    controls = replace(GREEDY, bad_words=((0, 1), (0, 2), (0, 0)))
    assert token(controls, [0], 1, LOGITS) == 3
    assert token(controls, [3], 1, LOGITS) == 1


def test_no_bad_word_is_ever_said_in_a_long_text():
    words = ((BLUE, BLUE), (SKY, BLUE, SKY), (9,))
    sequence = alone(RowControls(seed=4, temperature=1.5, bad_words=words), 200)
    text = [0, *sequence.generated]
    for word in words:
        found = [text[i : i + len(word)] for i in range(len(text))]
        assert list(word) not in found
    assert {BLUE, SKY} <= set(text)


def test_only_allowed_ids_are_said_and_what_else_is_forbidden_among_them_is_not():
    allowed = frozenset({3, 4, 8, 30})
    controls = RowControls(seed=1, temperature=1.5, allowed_ids=allowed, bad_words=((8,),))
    said = set(alone(controls, 100).generated)
    assert said == {3, 4, 30}


def test_neither_eos_nor_a_stop_id_comes_before_min_tokens_whether_eos_is_ignored_or_not():
    for ignore_eos in (False, True):
        controls = RowControls(
            seed=3,
            temperature=1.5,
            min_tokens=20,
            ignore_eos=ignore_eos,
            eos_ids=frozenset({BLUE}),
            stop_ids=frozenset({SKY, 5}),
        )
        said = alone(controls, 60).generated
        assert not {BLUE, SKY, 5} & set(said[:20])
        assert {BLUE, SKY} <= set(said[20:])


# ── masks ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("vocab", [31, 32, 33, 50, 64])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_mask_lets_through_the_tokens_whose_bit_is_set(vocab: int, temperature: float):
    controls = RowControls(temperature=temperature)
    rng = np.random.default_rng(vocab)
    allowed = [sorted({int(t) for t in rng.integers(0, vocab, 4)} | {vocab - 1}) for _ in range(40)]
    logits = torch.from_numpy(rng.normal(0, 1, (40, vocab)).astype(np.float32))
    rows = [
        SampleRow(controls, 0, place, [], 0, mask_of(tokens, vocab))
        for place, tokens in enumerate(allowed)
    ]
    said = sample(logits, rows).tokens
    assert all(token in tokens for token, tokens in zip(said, allowed, strict=True))
    if temperature == 0:
        best = [max(tokens, key=logits[i].tolist().__getitem__) for i, tokens in enumerate(allowed)]
        assert said == best


def test_signed_words_mean_the_same_bits():
    logits = torch.zeros(1, VOCAB)
    mask = mask_of([31, 32]).view(np.int32)
    assert mask[0] < 0
    controls = replace(GREEDY, logit_bias={32: 1.0})
    assert sample(logits, [SampleRow(controls, 0, 0, [], 0, mask)]).tokens == [32]


def test_tokens_beyond_the_mask_are_forbidden_and_bits_beyond_the_vocabulary_mean_nothing():
    logits = torch.zeros(2, 70)
    logits[:, 69] = 9.0
    short, long = mask_of([5], 32), np.full(9, 0xFFFF_FFFF, dtype=np.uint32)
    rows = [SampleRow(GREEDY, 0, 0, [], 0, mask) for mask in (short, long)]
    assert sample(logits, rows).tokens == [5, 69]


def test_a_mask_touches_its_own_row_only_and_meets_the_other_controls():
    logits = torch.tensor([LOGITS] * 4)
    rows = [
        SampleRow(GREEDY, 0, 0, [], 0),
        SampleRow(GREEDY, 0, 0, [], 0, mask_of([0, 2], 4)),
        SampleRow(replace(GREEDY, allowed_ids=frozenset({0, 1})), 0, 0, [], 0, mask_of([0, 2], 4)),
        SampleRow(replace(GREEDY, logit_bias={3: 100.0}), 0, 0, [], 0, mask_of([0, 2], 4)),
    ]
    assert sample(logits, rows).tokens == [1, 2, 0, 2]


def test_a_mask_that_allows_nothing_names_its_row():
    rows = [SampleRow(GREEDY, 0, 0, [], 0), SampleRow(GREEDY, 0, 0, [], 0, mask_of([]))]
    with pytest.raises(RowFault, match="forbid every token") as caught:
        sample(torch.zeros(2, VOCAB), rows)
    assert caught.value.rows == (1,)


def test_logprobs_of_a_masked_row_are_raw():
    logits = torch.tensor([LOGITS])
    controls = replace(GREEDY, logprobs=2)
    (masked,) = sample(logits, [SampleRow(controls, 0, 0, [], 0, mask_of([3], 4))]).logprobs
    raw = logits[0].double().log_softmax(-1)
    assert masked.logprob == pytest.approx(raw[3].item())
    assert [token for token, _ in masked.top] == [1, 2]


# ── log-probabilities ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("count", [0, 1, 3, 20, VOCAB])
def test_logprobs_are_sorted_sum_to_one_at_most_and_agree_on_the_chosen_token(count: int):
    sequence = alone(RowControls(seed=6, temperature=1.5, logprobs=count), 40)
    chosen_in_top = 0
    for token, logprobs in zip(sequence.generated, sequence.logprobs, strict=True):
        values = [value for _, value in logprobs.top]
        assert len(values) == count
        assert values == sorted(values, reverse=True)
        assert max([logprobs.logprob, *values]) <= 0
        assert math.fsum(map(math.exp, values)) <= 1 + 1e-9
        top = dict(logprobs.top)
        assert top.get(token, logprobs.logprob) == logprobs.logprob
        chosen_in_top += token in top
    assert (chosen_in_top == 40) if count == VOCAB else (chosen_in_top < 40)


def test_the_same_tokens_have_the_same_logprobs_at_any_temperature():
    forced = {"logit_bias": {7: 100.0}, "logprobs": 5}
    greedy, *others = [
        alone(RowControls(seed=1, **controls, **forced), 6)
        for controls in (
            {"temperature": 0.0},
            {"temperature": 0.3},
            {"temperature": 2.0, "top_k": 3, "top_p": 0.4},
            {"temperature": 1.0, "presence_penalty": 2.0, "repetition_penalty": 1.3},
        )
    ]
    assert greedy.generated == [7] * 6
    for other in others:
        assert same(other, greedy)


# ── one pass ──────────────────────────────────────────────────────────────────────────────────


class Calls(TorchFunctionMode):
    """Counts the calls of torch while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.count += 1
        return function(*args, **(kwargs or {}))


def rows_of(controls: Callable[[int], RowControls], count: int) -> list[SampleRow]:
    rng = random.Random(count)
    histories = [[rng.randrange(VOCAB) for _ in range(6 + i % 9)] for i in range(count)]
    masks = [mask_of(range(1, VOCAB, 2)) if i % 5 == 4 else None for i in range(count)]
    return [
        SampleRow(controls(i), 0, len(known), known, 5, mask)
        for i, (known, mask) in enumerate(zip(histories, masks, strict=True))
    ]


def every_control(number: int) -> RowControls:
    return [
        RowControls(seed=number, top_k=5, repetition_penalty=1.2, logprobs=3),
        replace(GREEDY, frequency_penalty=0.4, bad_words=((1,), (2, 3)), logit_bias={9: 1.0}),
        RowControls(seed=number, top_p=0.9, presence_penalty=1.0, min_tokens=9),
        RowControls(seed=number, min_p=0.05, allowed_ids=frozenset(range(40)), logprobs=0),
        RowControls(seed=number, temperature=0.6, eos_ids=frozenset({4}), min_tokens=3),
    ][number % 5]


@pytest.mark.parametrize("controls", [lambda i: GREEDY, lambda i: RowControls(), every_control])
def test_64_rows_take_no_more_calls_of_torch_than_5(controls: Callable[[int], RowControls]):
    counts = []
    for rows in (5, 64):
        logits = torch.from_numpy(
            np.random.default_rng(rows).normal(0, 2, (rows, VOCAB)).astype(np.float32)
        )
        with Calls() as calls:
            sample(logits, rows_of(controls, rows))
        counts.append(calls.count)
    assert counts[0] == counts[1] > 0
