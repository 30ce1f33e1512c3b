"""A stretch of traffic is played as it happened: exactly, where nothing is unknown."""

import math
import random
from dataclasses import replace
from statistics import fmean

import pytest
from support.shadowed import COST, MACHINE, LiveHouse, traffic

from app.shadow.playing import play
from engine.batch import StepShape
from engine.controls import RowControls
from engine.inbox import Submission
from engine.limits import ClassLimits
from engine.prefix import block_keys
from policies.fair_share import FairShare
from policies.fcfs import FCFS
from policies.shortest_first import ShortestFirst

JUDGED = ("ttft_s", "itl_p99_s")


def test_the_first_window_is_predicted_exactly():
    house = LiveHouse(traffic(20.0))
    stretch, real, _ = house.window(20.0)
    played = play(stretch, FCFS, MACHINE, seed=0).score
    assert played.requests == real.requests > 50
    for measure in ("ttft_s", "itl_s", "itl_p99_s", "output_tok_s"):
        assert played.whole[measure] == pytest.approx(real.whole[measure], rel=1e-6), measure
    assert {*played.by_tenant} == {*real.by_tenant} == {"a", "b"}
    for tenant, values in real.by_tenant.items():
        assert played.by_tenant[tenant]["ttft_s"] == pytest.approx(values["ttft_s"], rel=1e-6)


@pytest.mark.parametrize("policy", [FCFS, ShortestFirst, FairShare])
def test_later_windows_go_on_from_where_everybody_was(policy):
    house = LiveHouse(traffic(50.0, every_s=0.09), policy=policy)
    for until in (10.0, 20.0, 30.0, 40.0, 50.0):
        stretch, real, _ = house.window(until)
        played = play(stretch, policy, MACHINE, seed=0).score
        assert played.requests == real.requests
        for measure in JUDGED:
            assert played.whole[measure] == pytest.approx(real.whole[measure], rel=0.05), until


def test_a_cost_model_that_is_wrong_is_seen():
    stretch, real, _ = LiveHouse(traffic(20.0)).window(20.0)
    wrong = replace(MACHINE, cost=COST.times(2.0))
    played = play(stretch, FCFS, wrong, seed=0).score
    assert played.whole["ttft_s"] > 1.5 * real.whole["ttft_s"]
    assert played.whole["itl_p99_s"] > 1.5 * real.whole["itl_p99_s"]


def test_the_same_seed_plays_the_same_and_another_one_scatters_otherwise():
    stretch, _, _ = LiveHouse(traffic(10.0)).window(10.0)
    noisy = replace(MACHINE, noise=0.2)
    once, again, other = (play(stretch, FCFS, noisy, seed).score for seed in (1, 1, 2))
    assert once == again != other


def test_measured_scatter_predicts_a_machine_that_scatters():
    noisy = replace(MACHINE, noise=0.15)
    house = LiveHouse(traffic(60.0, every_s=0.1), noisy)
    house.window(30.0)
    stretch, real, scatter = house.window(60.0)
    assert scatter.bias == pytest.approx({"decode": 0.0, "prompt": 0.0}, abs=0.05)
    weather, residuals = scatter.beside(COST)
    machine = replace(MACHINE, noise=residuals)
    runs = [play(stretch, FCFS, machine, seed, weather).score.whole for seed in range(4)]
    for measure in JUDGED:
        mean = sum(run[measure] for run in runs) / len(runs)
        assert mean == pytest.approx(real.whole[measure], rel=0.2), measure


def test_a_machine_that_is_slow_for_a_while_is_slow_at_that_time():
    """With the same slowness spread over all steps nobody would have waited."""

    def slow(shape: StepShape, now: float) -> float:
        return 4.0 if 12.0 <= now < 15.0 else 1.0

    house = LiveHouse(traffic(20.0, every_s=0.14), noise=slow)
    stretch, real, scatter = house.window(20.0)
    weather, residuals = scatter.beside(COST)
    machine = replace(MACHINE, noise=residuals)
    runs = [play(stretch, FCFS, machine, seed, weather).score.whole for seed in range(3)]
    spread = [play(stretch, FCFS, machine, seed).score.whole for seed in range(3)]
    assert fmean(run["ttft_s"] for run in runs) == pytest.approx(real.whole["ttft_s"], rel=0.1)
    assert fmean(run["ttft_s"] for run in spread) < 0.5 * real.whole["ttft_s"]


def test_what_a_model_said_at_the_time_does_not_matter_once_it_knows_better():
    """A model that learns follows a machine that becomes slow, and would be slow twice."""
    house = LiveHouse(traffic(20.0), noise=lambda shape, now: 2.0 if now > 10.0 else 1.0)
    stretch, real, scatter = house.window(20.0)
    weather, residuals = scatter.beside(COST.times(2.0))
    assert weather.at(5.0) == pytest.approx(0.5)
    assert weather.at(15.0) == pytest.approx(1.0)
    machine = replace(MACHINE, cost=COST.times(2.0), noise=residuals)
    played = play(stretch, FCFS, machine, 0, weather).score
    for measure in JUDGED:
        assert played.whole[measure] == pytest.approx(real.whole[measure], rel=0.1), measure


def test_who_was_refused_in_reality_may_be_served_by_another_and_the_other_way_round():
    closed = replace(MACHINE, classes={"default": ClassLimits(max_waiting=1)}, rows=2)
    stretch, real, _ = LiveHouse(traffic(20.0), closed).window(20.0)
    assert real.whole["shed"] > 0
    assert play(stretch, FCFS, closed, seed=0).score.whole["shed"] == pytest.approx(
        real.whole["shed"], abs=0.15 * real.whole["shed"]
    )
    assert play(stretch, FCFS, MACHINE, seed=0).score.whole["shed"] == 0


def test_answers_of_several_sequences_count_each():
    stretch, real, _ = LiveHouse(traffic(10.0, every_s=0.5, n=3)).window(10.0)
    played = play(stretch, FCFS, MACHINE, seed=0).score
    assert played.whole["output_tok_s"] == pytest.approx(real.whole["output_tok_s"], rel=1e-6)
    assert played.whole["ttft_s"] == pytest.approx(real.whole["ttft_s"], rel=1e-6)


def test_an_empty_window_has_nothing_to_tell():
    stretch, real, _ = LiveHouse([]).window(5.0)
    played = play(stretch, FCFS, MACHINE, seed=0).score
    assert played == real
    assert played.whole["ttft_s"] is None
    assert math.isclose(played.whole["output_tok_s"], 0.0)


def chats(seconds: float) -> list[Submission]:
    """Requests behind one long prompt, and those that go on from the answer to the one before."""
    chance, rules = random.Random(3), list(range(500, 900))
    found, at, history = [], 0.0, list(rules)
    while (at := at + chance.expovariate(1.2)) < seconds:
        fresh = len(history) > 900 or chance.random() < 0.3
        history = list(rules) if fresh else history
        history += [chance.randrange(2000) for _ in range(chance.randint(10, 40))]
        answer = chance.randint(20, 40)
        found.append(
            Submission(
                id=1 + len(found),
                prompt=list(history),
                max_tokens=answer,
                controls=RowControls(ignore_eos=True),
                arrival=at,
                prompt_keys=block_keys(history, b""),
            )
        )
        history += [0] * answer  # what a simulated engine says
        at += 0.6
    return found


def test_what_was_found_cached_is_found_again():
    """From the second window on the long prompt is there before, too."""
    house = LiveHouse(chats(90.0))
    for until in (30.0, 60.0, 90.0):
        stretch, real, _ = house.window(until)
        assert sum(course.cached for course in stretch.courses) > 5000
        played = play(stretch, FCFS, MACHINE, seed=0).score
        assert played.whole["ttft_s"] == pytest.approx(real.whole["ttft_s"], rel=0.03), until
    forgotten = replace(stretch, courses=[replace(each, cached=0) for each in stretch.courses])
    assert play(forgotten, FCFS, MACHINE, seed=0).score.whole["ttft_s"] > 1.2 * real.whole["ttft_s"]
