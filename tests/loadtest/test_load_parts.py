"""Who asks for what in a load test, how many there are, and whether two sides agree."""

from __future__ import annotations

import json
import random
import statistics
from pathlib import Path

import pytest
import yaml
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from starlette.datastructures import Headers
from support.deployment import ROOT

from app.config import load_with_sources
from app.keys import KeyRing
from loadtest.live import LiveRecord, LiveRun, report
from loadtest.live.records import from_json, jsonable
from loadtest.live.server_metrics import Look, Scrape
from loadtest.load.comparison import FAMILIES, Pair, agree, compare
from loadtest.load.page import page, resources
from loadtest.load.rows import LocustRow, overall, read_rows
from loadtest.load.server import CONFIG, fine_buckets
from loadtest.load.shapes import SHAPES
from loadtest.load.users import USUAL, Group, Lengths, UsersError, read_groups
from loadtest.reports import Origin
from loadtest.traces import Arrival


def written(tmp_path: Path, content: str) -> Path:
    path = tmp_path / "users.yaml"
    path.write_text(content)
    return path


def test_the_users_that_come_with_it_are_known_to_the_server_that_comes_with_it():
    config = load_with_sources(CONFIG, {}, tuple(fine_buckets()[1::2])).config
    keys = KeyRing((key, name) for name, tenant in config.tenants.items() for key in tenant.keys)
    groups = read_groups()
    assert {group.name for group in groups} == set(yaml.safe_load(USUAL.read_text())["groups"])
    for group in groups:
        tenant = config.tenants[keys.owner(Headers({"authorization": f"Bearer {group.key}"}))]
        assert group.service_tier in tenant.classes
        assert group.service_tier in config.classes
    assert config.api.per_request_metrics


def test_lengths_scatter_around_their_median_within_their_bounds():
    lengths, chance = Lengths(100, 1.5, 30, 400), random.Random(0)
    drawn = [lengths.draw(chance) for _ in range(4000)]
    assert min(drawn) >= 30
    assert max(drawn) <= 400
    assert statistics.median(drawn) == pytest.approx(100, rel=0.05)
    within = sum(100 / 1.5 <= length <= 150 for length in drawn) / len(drawn)
    assert within == pytest.approx(0.68, abs=0.04)
    assert {Lengths(7, 1.0).draw(chance) for _ in range(9)} == {7}


def test_users_think_as_long_as_they_are_told_on_average():
    chance, usual = random.Random(0), Lengths(1)
    slow = Group("a", usual, usual, think_s=2.0)
    thought = statistics.mean(slow.thinking(chance) for _ in range(4000))
    assert thought == pytest.approx(2.0, rel=0.1)
    assert Group("a", usual, usual).thinking(chance) == 0


@pytest.mark.parametrize(
    ("content", "names"),
    [
        ("- a", "groups"),
        ("groups: {}", "groups"),
        ("groups: [a]", "groups"),
        ("groups: {a: 1}", "groups.a: expected keys"),
        ("groups: {a: {wait: 1}}", "groups.a.wait: is none of"),
        ("groups: {a: {}}", "groups.a.prompt_tokens: is missing"),
        ("groups: {a: {prompt_tokens: {median: 0}}}", "groups.a.prompt_tokens: median"),
        ("groups: {a: {prompt_tokens: {}}}", "groups.a.prompt_tokens"),
        (
            "groups: {a: {prompt_tokens: {median: 1}, output_tokens: {median: 1}, weight: 0}}",
            "groups.a: weight",
        ),
        ("{", "cannot be read"),
    ],
)
def test_what_is_wrong_with_a_file_of_users_is_named(tmp_path, content, names):
    with pytest.raises(UsersError, match=names):
        read_groups(written(tmp_path, content))


def test_a_file_of_users_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UsersError, match=r"none\.yaml"):
        read_groups(tmp_path / "none.yaml")


@pytest.mark.parametrize("name", SHAPES)
def test_a_shape_has_somebody_at_any_time_and_never_too_many(name):
    for users in (1, 3, 40):
        counts = [SHAPES[name](at, 100.0, users) for at in range(101)]
        assert min(counts) >= 1
        assert max(counts) <= users


def test_shapes_are_what_their_names_say():
    def counts(name: str, duration: float = 100.0) -> list[int]:
        return [SHAPES[name](at, duration, 20) for at in range(int(duration))]

    assert set(counts("steady")[5:]) == {20}
    assert sorted(set(counts("step"))) == [4, 8, 12, 16, 20]
    assert counts("step") == sorted(counts("step"))
    spike = counts("spike")
    assert (set(spike[:40]), set(spike[40:60]), set(spike[60:])) == ({5}, {20}, {5})
    soak = counts("soak", 1200.0)
    assert (soak[0], soak[300], soak[600], soak[900]) == (10, 20, 10, 20)


def test_locusts_statistics_are_read_in_seconds(tmp_path):
    path = tmp_path / "stats.json"
    usual = {"num_failures": 0, "num_requests": 4, "total_response_time": 500.0}
    times = {"250": 1, "90": 1, "120.0": 2}
    rows = [
        {"name": "TTFT", "method": "all", **usual, "response_times": times},
        {"name": "/v1", "method": "POST", **usual, "num_failures": 1, "response_times": {}},
    ]
    path.write_text(json.dumps(rows))
    ttft, post = read_rows(path)
    assert ttft == LocustRow("all", "TTFT", 4, 0, 0.125, 0.12, 0.25)
    assert (post.failures, post.p50) == (1, None)
    assert overall([ttft, post], "TTFT") is ttft
    assert overall([ttft, post], "E2E") is None


def observed(values) -> Scrape:
    registry = CollectorRegistry()
    histogram = Histogram(FAMILIES["TTFT"], "", buckets=[0.1, 0.2, 0.25, 0.5], registry=registry)
    for value in values:
        histogram.observe(value)
    return Scrape(generate_latest(registry).decode())


def compared(mean: float, p50: float, p99: float, count: int = 4) -> dict[str, bool]:
    """Whether each figure agrees with a server that saw a mean of 0.2 s."""
    before, after = observed([9.0]), observed([9.0, 0.15, 0.19, 0.22, 0.24])
    pairs = compare([LocustRow("all", "TTFT", count, 0, mean, p50, p99)], before, after)
    return {pair.figure: pair.agrees for pair in pairs}


def test_what_is_within_a_twentieth_of_what_came_meanwhile_agrees():
    assert all(compared(0.2, 0.19, 0.24).values())
    assert all(compared(0.209, 0.2, 0.25).values())
    assert not compared(0.211, 0.2, 0.24)["mean"]
    assert not compared(0.189, 0.2, 0.24)["mean"]


def test_counts_have_to_be_the_same():
    assert not compared(0.2, 0.2, 0.24, count=5)["count"]


def test_percentiles_may_be_off_by_a_bucket_and_by_what_locust_rounds():
    assert not compared(0.2, 0.3, 0.24)["p50"]
    assert not compared(0.2, 0.2, 0.4)["p99"]


def test_nothing_to_compare_is_no_agreement():
    assert not agree([])
    assert compare([], observed([]), observed([])) == []
    assert agree([Pair("TTFT", "mean", 1.0, 1.0, 0.0)])
    assert not agree([Pair("TTFT", "mean", 1.0, 1.1, 0.0), Pair("TTFT", "p50", 1, 1, 0)])


def test_a_record_comes_back_from_its_file():
    record = LiveRecord(Arrival(1.0, 20, 4, "acme", "batch"), 1.5, error="x", status=400)
    record.chunk_times.extend([2.0, 3.0])
    again = from_json(jsonable(record))
    assert again == record
    moved = again.moved(-1.0)
    assert (moved.arrival.at, moved.sent_at, list(moved.chunk_times)) == (0.0, 0.5, [1.0, 2.0])


def test_the_page_says_who_agrees_and_what_the_server_held():
    looks = [Look(at, 3, 1, 0.5, 2**30, 20) for at in range(10)] + [Look(10, 0, 0, 0.0, 2**30, 20)]
    run = LiveRun([LiveRecord(Arrival(0, 5, 2), error="queue_full", status=429)], looks, "u", "m")
    pairs = [Pair("TTFT", "mean", 1.2, 1.0, 0.05), Pair("TTFT", "count", 3, 3, 0)]
    html = page(run, report(run), pairs, Origin("c"), "title").html()
    assert "do not agree" in html
    assert "1 of 1 requests failed" in html
    assert [row[1:] for row in resources(looks).rows][:2] == [[1024.0] * 4, [20.0] * 4]
    assert resources(looks).rows[3][1:] == [3, 3, 0, 3]
    assert resources([]).rows[0][1:] == [None] * 4


def test_locusts_file_is_where_it_is_said_to_be():
    assert (ROOT / "loadtest" / "locustfile.py").exists()
