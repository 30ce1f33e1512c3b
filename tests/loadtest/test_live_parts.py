"""Prompts of wanted lengths, and what is read of a server's metrics."""

import math

import numpy as np
import pytest
from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client import Histogram as ClientHistogram

from loadtest.live.prompts import Prompts, sample_text
from loadtest.live.server_metrics import Histogram, Scrape
from loadtest.traces import Arrival, Prefix

BLOCK = 16


def prompts(seed: int = 0) -> Prompts:
    return Prompts(range(100, 400), seed)


def test_prompts_have_the_length_that_was_asked_for():
    for tokens in (1, 15, 16, 17, 1000):
        assert len(prompts().of(0, Arrival(0, tokens, 1))) == tokens
    named = Arrival(0, 40, 1, prefix=Prefix((1, 2, 3)))
    assert len(prompts().of(0, named)) == 40


def test_prompts_without_names_have_no_block_in_common():
    made = [prompts().of(number, Arrival(0, 64, 1)) for number in range(200)]
    blocks = {tuple(prompt[at : at + BLOCK]) for prompt in made for at in range(0, 64, BLOCK)}
    assert len(blocks) == 200 * 4


def test_the_same_names_make_the_same_tokens_in_any_request():
    first = prompts().of(0, Arrival(0, 64, 1, prefix=Prefix((1, 2), 32)))
    second = prompts().of(9, Arrival(5, 60, 1, prefix=Prefix((1, 3), 32)))
    assert first[:32] == second[:32]
    assert first[32:48] != second[32:48]


def test_another_seed_makes_other_prompts_and_the_same_the_same():
    arrival = Arrival(0, 64, 1)
    assert prompts(1).of(3, arrival) == prompts(1).of(3, arrival)
    assert prompts(1).of(3, arrival) != prompts(2).of(3, arrival)


def test_without_words_there_are_no_prompts():
    assert len(set(sample_text(4096).split())) > 100
    assert len(sample_text(64).encode()) <= 64
    with pytest.raises(ValueError, match="no tokens"):
        Prompts([])


def test_a_look_takes_the_first_name_that_is_there():
    registry = CollectorRegistry()
    Gauge("octavo_requests_running", "", registry=registry).set(3)
    waiting = Gauge("vllm:num_requests_waiting", "", ["engine"], registry=registry)
    waiting.labels("0").set(4)
    waiting.labels("1").set(1)
    look = Scrape(generate_latest(registry).decode()).look(2.5)
    assert (look.at, look.running, look.waiting, look.kv_usage) == (2.5, 3, 5, None)


def observed(values, bounds, labels=()) -> Histogram:
    registry = CollectorRegistry()
    histogram = ClientHistogram("x", "", list(labels), buckets=bounds, registry=registry)
    for number, value in enumerate(values):
        (histogram.labels(str(number % 2)) if labels else histogram).observe(value)
    found = Scrape(generate_latest(registry).decode()).histogram("x")
    assert found is not None
    return found


def test_a_histogram_is_read_over_all_its_labels():
    values = np.random.default_rng(0).exponential(size=1000)
    found = observed(values, np.linspace(0.01, 8, 400).tolist(), labels=["model"])
    assert found.count == 1000
    assert found.mean == pytest.approx(values.mean())
    for share in (0.5, 0.9, 0.99):
        quantile = found.quantile(share)
        lower, upper = found.bucket_of(share)
        assert lower <= quantile <= upper
        assert quantile == pytest.approx(np.quantile(values, share), abs=0.05)


def test_between_two_readings_there_is_what_came_meanwhile():
    before, after = observed([1, 1], [1, 2, 3]), observed([1, 1, 2, 3, 9], [1, 2, 3])
    since = after.since(before)
    assert (since.count, since.total) == (3, 14)
    assert since.bucket_of(0.5) == (2, 3)
    assert since.bucket_of(1.0) == (3, math.inf)
    assert since.quantile(1.0) == 3
    assert after.since(None) is after


def test_an_empty_histogram_has_no_figures():
    empty = observed([], [1, 2])
    assert (empty.count, empty.mean, empty.quantile(0.5), empty.bucket_of(0.5)) == (
        0,
        None,
        None,
        None,
    )
    assert Scrape("").histogram("x") is None
