"""Open loop over HTTP: everybody is sent when due, and whatever happens to one is noted."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from array import array

import pytest
from support.programs import run as run_program
from support.serving import serving, until

from engine.simulation import Machine, Targets, simulate
from engine.simulation.machine import LinearCost
from loadtest.live import LiveError, LiveRecord, LiveRun, Settings, play, report
from loadtest.live.page import page
from loadtest.live.tables import tables
from loadtest.metrics import report as simulated_report
from loadtest.reports import Origin
from loadtest.traces import Arrival, Prefix
from policies.fcfs import FCFS

TENANTS = {
    "classes": {"fast": {"priority": -1}, "slow": {}},
    "tenants": {
        "acme": {"keys": ["key-of-acme"], "classes": ["slow", "fast"]},
        "default": {"classes": ["slow"]},
    },
}


def arrivals(count: int, every: float = 0.01, **fields) -> list[Arrival]:
    return [Arrival(every * n, 20 + n, 3 + n % 4, **fields) for n in range(count)]


async def test_everybody_gets_as_many_tokens_as_the_trace_says():
    ticks = []
    async with serving(per_request_metrics=True) as house:
        run = await play(house.url, arrivals(20), tick=lambda: ticks.append(1))
        await house.idle()
    assert run.errors() == {}
    assert len(ticks) == 20
    for request in run.requests:
        arrival = request.arrival
        assert (request.prompt_tokens, request.output_tokens) == (
            arrival.prompt_tokens,
            arrival.output_tokens,
        )
        assert arrival.at <= request.sent_at <= request.chunk_times[0]
        assert list(request.chunk_times) == sorted(request.chunk_times)
        assert request.queue_s is not None
    assert all(record.completed for record in run.records())
    assert run.model == house.service.model_id


async def test_nobody_waits_for_an_answer_before_the_next_is_sent():
    everybody_is_there = threading.Event()
    hooks = {0: lambda batch: everybody_is_there.wait(60)}
    async with serving(rows=1, hooks=hooks) as house:
        playing = asyncio.ensure_future(play(house.url, arrivals(12)))
        await until(lambda: house.bridge.open_requests == 12)
        everybody_is_there.set()
        run = await playing
    assert run.errors() == {}


async def test_a_run_that_is_interrupted_tells_of_those_that_have_ended():
    """Whoever is cut off is in nobody's figures, and nothing is left of it at the server."""
    enough, ticks = asyncio.Event(), []
    far = [*arrivals(3), Arrival(0.05, 20, 100_000), Arrival(3600.0, 5, 2)]

    def tick() -> None:
        ticks.append(1)
        if len(ticks) == 3:
            enough.set()

    stuck = threading.Event()
    async with serving(hooks={60: lambda batch: stuck.wait(60)}) as house:
        run = await play(house.url, far, tick=tick, enough=enough)
        stuck.set()
        await house.idle()
    assert [request.arrival for request in run.requests] == far[:3]
    assert run.interrupted
    assert report(run)["completed"] == 3


def test_latency_counts_from_when_a_request_was_due():
    late = LiveRecord(Arrival(1.0, 5, 2), sent_at=3.0, chunk_times=array("d", [4.0, 5.0]))
    late.output_tokens = 2
    assert late.lag == 2.0
    assert (late.as_simulated().ttft, late.as_simulated().e2e) == (3.0, 4.0)
    sent = late.as_simulated(since_sent=True)
    assert (sent.ttft, sent.e2e, sent.tpot) == (1.0, 2.0, 1.0)
    figures = report(LiveRun([late], [], "url", "model"))
    assert figures["ttft_s"]["mean"] == 3.0
    assert figures["since_sent"]["ttft_s"]["mean"] == 1.0
    assert set(figures["lag_s"].values()) == {2.0}
    assert set(figures["lag_s"]) >= {"mean", "p50", "p99", "most"}


def test_tokens_of_one_chunk_came_at_the_same_time():
    record = LiveRecord(Arrival(0.0, 5, 4), chunk_times=array("d", [1.0, 2.0]), output_tokens=4)
    simulated = record.as_simulated()
    assert simulated.completed
    assert list(simulated.token_times) == [1.0, 2.0, 2.0, 2.0]


def test_who_failed_half_way_is_not_completed():
    record = LiveRecord(Arrival(0.0, 5, 2), chunk_times=array("d", [1.0]), error="cut_short")
    assert not record.as_simulated().completed
    assert record.as_simulated().shed == "cut_short"


async def test_tenants_show_their_keys_and_ask_for_their_classes():
    seen = {}

    class Spy(FCFS):
        def key(self, request):
            seen[request.prompt] = (request.tenant, request.slo_class, request.priority)
            return super().key(request)

    sent = [
        Arrival(0.0, 20, 2, tenant="acme", slo_class="fast"),
        Arrival(0.0, 21, 2, tenant="acme"),
        Arrival(0.0, 22, 2, tenant="somebody", slo_class="fast", priority=5),
    ]
    async with serving(config=TENANTS, policy=Spy) as house:
        await play(house.url, sent, Settings(keys={"acme": "key-of-acme"}))
    assert seen == {
        20: ("acme", "fast", -1),
        21: ("acme", "slow", 0),
        22: ("default", "slow", 5),
    }


async def test_the_same_names_are_the_same_tokens_and_found_in_the_cache():
    prefix = Prefix((7, 8), 32)
    async with serving() as house:
        run = await play(house.url, [Arrival(0.5 * n, 64, 2, prefix=prefix) for n in range(2)])
    assert [request.cached_tokens for request in run.requests] == [0, 48]


async def test_errors_are_told_by_their_codes():
    async with serving(model_len=64) as house:
        run = await play(house.url, [Arrival(0.0, 100, 5), Arrival(0.0, 20, 5)])
    assert run.errors() == {"context_length_exceeded": 1}
    figures = report(run)
    assert (figures["failed"], figures["refused"], figures["shed"]) == (1, 0, 1)


async def test_who_is_turned_away_is_refused_and_has_not_failed():
    gate = threading.Event()
    hooks = {0: lambda batch: gate.wait(60)}
    async with serving(max_open=2, hooks=hooks) as house:
        ended = []
        playing = asyncio.ensure_future(
            play(house.url, arrivals(5, 0.0), tick=lambda: ended.append(1))
        )
        await until(lambda: len(ended) == 3)
        gate.set()
        run = await playing
    assert run.errors() == {"queue_full": 3}
    assert (report(run)["failed"], report(run)["refused"]) == (0, 3)


async def test_a_server_that_is_not_there_or_says_no_is_an_error_of_its_own():
    with pytest.raises(LiveError, match=r"there is no server at http://127\.0\.0\.1:1: "):
        await play("http://127.0.0.1:1", arrivals(1))
    with pytest.raises(LiveError, match="no http URL"):
        await play("localhost:8000", arrivals(1))
    async with serving() as house:
        with pytest.raises(LiveError, match="there is no model mine: bytes"):
            await play(house.url, arrivals(1), Settings(model="mine"))
    config = {**TENANTS, "identity": {"require_key": True}}
    async with serving(config=config) as house:
        with pytest.raises(LiveError, match="401"):
            await play(house.url, arrivals(1))
        run = await play(house.url, arrivals(1), Settings(keys={"": "key-of-acme"}))
        assert run.errors() == {}


async def test_the_server_is_looked_at_meanwhile():
    async with serving() as house:
        run = await play(house.url, arrivals(3), Settings(look_s=0.01))
        unseen = await play(house.url, arrivals(3), Settings(look_s=0))
    assert [look.at for look in run.looks] == sorted(look.at for look in run.looks)
    last = run.looks[-1]
    assert last.at >= run.requests[-1].chunk_times[-1]
    assert (last.running, last.waiting, last.kv_usage) == (0, 0, 0)
    assert last.memory_bytes is None or last.memory_bytes > 0
    assert unseen.looks == []
    assert report(unseen)["server"] == {"running": None, "waiting": None, "kv_usage": None}


def test_the_figures_have_the_names_that_a_simulated_run_has():
    sent = arrivals(3)
    simulated = simulated_report(simulate(FCFS, sent, Machine(LinearCost(base=0.01))))
    requests = [
        LiveRecord(each, each.at, array("d", [each.at + 0.1] * each.output_tokens)) for each in sent
    ]
    for request in requests:
        request.output_tokens = request.arrival.output_tokens
    live = report(LiveRun(requests, [], "url", "model"))
    of_the_engine = {"forced_admissions", "policy_faults", "prediction_error", "steps"}
    of_the_engine |= {"queue_seconds"}
    assert set(simulated) - set(live) == of_the_engine


async def test_a_run_is_told_as_a_page_and_as_tables(capsys):
    async with serving(config=TENANTS) as house:
        sent = [Arrival(0.0, 20, 3, tenant=name) for name in ("a", "b")]
        sent.append(Arrival(0.0, 400, 3))
        targets = {"default": Targets(ttft=60.0)}
        run = await play(house.url, sent, Settings(targets=targets))
    figures = report(run)
    html = page(run, figures, Origin("the command"), "title", "question").html()
    assert "context_length_exceeded" in html
    assert html.count("<figure") >= 6
    assert len(list(tables(figures))) == 4
    assert figures["goodput_req_s"] > 0


async def test_the_command_prints_json_writes_its_files_and_says_by_its_status_who_failed(tmp_path):
    trace = tmp_path / "trace.csv"
    rows = [f"{0.01 * n},t{n % 2},{20 + n},{2 + n % 3}" for n in range(6)]
    trace.write_text("\n".join(["arrival_s,tenant,prompt_tokens,output_tokens", *rows]))
    files = tmp_path / "report.html", tmp_path / "records.jsonl"
    command = [sys.executable, "-m", "loadtest.live"]
    async with serving() as house:
        told = ["--json", "--html", str(files[0]), "--records", str(files[1])]
        code, out, err = await run_program(*command, house.url, "--trace", str(trace), *told)
        assert code == 0, err
        assert json.loads(out)["completed"] == 6
        assert "report.html" in err
        assert files[0].read_text().startswith("<!doctype html>")
        lines = [json.loads(line) for line in files[1].read_text().splitlines()]
        assert [line["output_tokens"] for line in lines] == [2, 3, 4, 2, 3, 4]
        rows[0] = "0,t,5000,1"
        trace.write_text("\n".join(["arrival_s,tenant,prompt_tokens,output_tokens", *rows]))
        code, out, err = await run_program(*command, house.url, "--trace", str(trace))
        assert code == 1, err
        assert "context_length_exceeded" in out, err
    code, _, err = await run_program(*command, "http://127.0.0.1:1", "--trace", str(trace))
    assert (code, err[:26]) == (2, "Error: there is no server ")
