"""Predictions are believed for as long as they come true."""

import math
import random

import pytest

from app.shadow.trust import JUDGED, KEPT, Trust, own_error

OWN = dict.fromkeys(JUDGED, 0.1)
REAL = dict.fromkeys(JUDGED, 1.0)


def predicted(error: float) -> dict[str, float]:
    return dict.fromkeys(JUDGED, 1.0 + error)


def test_a_prediction_within_the_stated_error_is_trusted():
    verdict = Trust(0.9, 0.25).judge(predicted(0.08), REAL, OWN, bias={})
    assert verdict.trusted
    assert [error.stated for error in verdict.errors] == pytest.approx([0.1, 0.15])
    assert verdict.errors[0].error == pytest.approx(0.08)


def test_nothing_that_was_predicted_as_nothing_is_no_error():
    """And is no number that would be remembered for 40 windows."""
    trust = Trust(0.9, 0.25)
    nothing = dict.fromkeys(JUDGED, 0.0)
    assert [each.error for each in trust.judge(nothing, nothing, OWN, bias={}).errors] == [0.0, 0.0]
    assert trust.judge(predicted(0.08), REAL, OWN, bias={}).trusted


def test_one_beyond_it_is_not_and_says_by_how_much():
    verdict = Trust(0.9, 0.25).judge({**predicted(0.0), "ttft_s": 0.44}, REAL, OWN, bias={})
    assert not verdict.trusted
    words = "ttft_s: predicted 0.44 s, really 1 s: off by 56%, stated error 10%"
    assert verdict.doubts == (words,)


def test_a_model_that_is_always_wrong_is_never_believed():
    trust = Trust(0.9, 0.25)
    verdicts = [trust.judge(predicted(1.0), REAL, OWN, bias={}) for _ in range(30)]
    assert not any(verdict.trusted for verdict in verdicts)
    assert verdicts[-1].errors[0].within, "it says so itself by now"
    assert "more than the 25% that are trusted" in verdicts[-1].doubts[0]


def test_a_window_that_went_well_does_not_make_up_for_those_that_did_not():
    trust = Trust(0.9, 0.25)
    trust.judge(predicted(0.6), REAL, OWN, bias={})
    verdict = trust.judge(predicted(0.0), REAL, OWN, bias={})
    assert not verdict.trusted
    assert "may be off by 60%" in verdict.doubts[0]


def test_a_single_bad_window_is_forgotten():
    trust = Trust(0.9, 0.25)
    trust.judge(predicted(0.6), REAL, OWN, bias={})
    for _ in range(19):
        trust.judge(predicted(0.01), REAL, OWN, bias={})
    assert trust.judge(predicted(0.0), REAL, OWN, bias={}).trusted


def test_errors_are_within_what_is_stated_as_often_as_is_promised():
    chance, trust, inside, judged = random.Random(1), Trust(0.9, 10.0), 0, 0
    for window in range(2000):
        error = 0.1 * math.exp(chance.gauss(0, 1))
        verdict = trust.judge(predicted(error), REAL, {}, bias={})
        if window >= KEPT:
            inside += verdict.errors[0].within
            judged += 1
    assert inside / judged == pytest.approx(0.9, abs=0.03)


def test_steps_that_take_other_times_than_the_model_says_are_a_doubt_of_their_own():
    trust = Trust(0.9, 0.25)
    assert not trust.judge(predicted(0.0), REAL, OWN, bias={"prompt": -0.5}).trusted
    verdict = trust.judge(predicted(0.0), REAL, OWN, bias={"decode": 0.4, "prompt": 0.1})
    assert verdict.doubts == ("decode steps took 40% more than the cost model says",)


def test_what_cannot_be_compared_is_not_believed():
    verdict = Trust(0.9, 0.25).judge({**predicted(0.0), "itl_p99_s": None}, REAL, OWN, bias={})
    assert verdict.doubts == ("itl_p99_s: nothing to compare",)


def test_a_simulation_says_how_much_it_depends_on_its_cost_and_its_luck():
    assert own_error(1.0, 1.08, 0.95, 0.0, 4) == pytest.approx(0.08)
    assert own_error(1.0, 1.0, 1.0, 0.1, 4) == pytest.approx(0.2 * math.sqrt(1.25))
    assert own_error(0.0, 0.0, 0.0, 0.0, 4) == math.inf
