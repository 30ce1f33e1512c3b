"""The rules of beam search by themselves. That they are transformers' is shown in tests/parity."""

import math

import pytest
from support.beams import branches_of, search_alone

from engine.beam_search import Beam, BeamSearch, Continuation, Hypothesis, Search
from engine.controls import Candidate, TokenLogprobs

END = 9
ENDS = frozenset({END})


def beam(*candidates: tuple[int, float], score: float = 0.0) -> Beam:
    return Beam(score, candidates=[Candidate(token, each, each) for token, each in candidates])


def search(max_tokens: int = 10, **settings) -> Search:
    return Search(BeamSearch(**{"width": 2, **settings}), max_tokens, ENDS)


def chosen(continuations: list[Continuation]) -> list[tuple[int, int, float]]:
    return [(one.parent, one.candidate.token, one.score) for one in continuations]


def test_the_best_continuations_of_all_beams_go_on_best_first() -> None:
    beams = [beam((1, -1.0), (2, -2.0), score=-1.0), beam((3, -0.25), (4, -9.0), score=-1.5)]
    going_on = search().advance(beams, [[5], [6]])
    assert chosen(going_on) == [(1, 3, -1.75), (0, 1, -2.0)]


def test_an_end_is_kept_only_if_it_is_among_the_best_and_another_goes_on_in_its_place() -> None:
    one = search()
    going_on = one.advance([beam((1, -1.0), (END, -2.0), (2, -3.0))], [[]])
    assert chosen(going_on) == [(0, 1, -1.0), (0, 2, -3.0)]
    assert [each.tokens for each in one.hypotheses] == [(END,)]
    late = search()
    late.advance([beam((1, -1.0), (2, -2.0), (END, -3.0))], [[]])
    assert late.hypotheses == []


@pytest.mark.parametrize(
    ("penalty", "best"), [(0.0, (END,)), (1.0, (1, END)), (-1.0, (END,))], ids=str
)
def test_the_length_penalty_divides_the_sum_by_a_power_of_the_length(penalty, best) -> None:
    one = search(width=1, length_penalty=penalty, early_stopping="never")
    one.advance([beam((END, -2.0), (1, -2.1))], [[]])
    one.advance([beam((END, -0.1), (2, -5.0), score=-2.1)], [[1]])
    assert one.best(1)[0].tokens == best


def after_two(score: float, max_tokens: int = 10, **settings) -> list[Continuation]:
    """The beams of a search that has two hypotheses; the only beam sums up to `score` at 4."""
    one = search(max_tokens, **settings)
    one.hypotheses = [Hypothesis((5, 5, END), each / 3, END, ()) for each in (-1.0, -2.0)]
    return one.advance([beam((1, score))], [[5, 5, 5]])


def test_early_stopping_decides_when_a_search_with_enough_hypotheses_is_over() -> None:
    assert after_two(-2.5, early_stopping=False)
    assert not after_two(-2.5, early_stopping=True)
    assert not after_two(-3.0, early_stopping=False), "at this length it scores worse"
    assert after_two(-3.0, early_stopping="never"), "it may score better when it is longer"
    assert not after_two(-3.0, early_stopping="never", length_penalty=0.0)
    assert after_two(-3.5, early_stopping="never")
    assert not after_two(-3.5, early_stopping="never", max_tokens=5), "there is no time for that"


def test_without_enough_hypotheses_every_search_goes_on_to_its_last_token() -> None:
    for stopping in (True, False, "never"):
        one = search(max_tokens=2, early_stopping=stopping)
        assert one.advance([beam((1, -1.0), (2, -9.0))], [[]])
        assert not one.advance([beam((1, -1.0)), beam((END, -2.0))], [[1], [2]])
        assert [each.tokens for each in one.best(2)] == [(1, 1), (2, END)]
        assert [each.stop_token for each in one.best(2)] == [None, END]


def test_where_there_are_too_few_hypotheses_the_last_is_repeated() -> None:
    one = search(max_tokens=1)
    assert not one.advance([beam((7, -1.0))], [[]])
    assert [each.tokens for each in one.best(2)] == [(7,), (7,)]


def test_log_probabilities_are_those_of_the_tokens_that_were_chosen() -> None:
    one = search(max_tokens=2, width=1)
    first = beam((1, -1.0))
    first.report = TokenLogprobs(-0.5, ((3, -0.5),))
    (going_on,) = one.advance([first], [[]])
    second = Beam(-1.0, first.reported(going_on.candidate), [Candidate(2, -3.0, -0.25)])
    second.report = TokenLogprobs(-0.1, ((4, -0.1),))
    one.advance([second], [[1]])
    assert one.best(1)[0].logprobs == (
        TokenLogprobs(-1.0, ((3, -0.5),)),
        TokenLogprobs(-0.25, ((4, -0.1),)),
    )


@pytest.mark.parametrize("seed", range(20))
def test_a_search_wide_enough_finds_the_best_of_everything(seed: int) -> None:
    prompt, length = [10 * seed + token for token in range(3)], 4
    best, todo = -math.inf, [(0.0, list[int]())]
    while todo:
        score, tokens = todo.pop()
        if len(tokens) == length:
            best = max(best, score / length)
            continue
        for token, logprob in branches_of([*prompt, *tokens], len(prompt)):
            todo.append((score + logprob, [*tokens, token]))
    found = search_alone(prompt, BeamSearch(3**length), length)
    assert found[0].score == pytest.approx(best)


@pytest.mark.parametrize("penalty", [math.nan, math.inf, 10.1, -11.0])
def test_a_penalty_out_of_bounds_is_refused(penalty: float) -> None:
    with pytest.raises(ValueError, match="length_penalty"):
        BeamSearch(2, penalty)


def test_a_search_needs_a_beam() -> None:
    with pytest.raises(ValueError, match="at least one beam"):
        BeamSearch(0)
