"""Traces: formats told apart by how they begin, plain or gzipped; bad rows are named; timing."""

from __future__ import annotations

import gzip
import itertools
import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from app.problems import BadConfiguration
from engine.prefix import KEY_BYTES
from loadtest.traces import (
    Arrival,
    Prefix,
    TraceError,
    at_rate,
    at_speed,
    drawn,
    rate_of,
    read_arrivals,
    read_trace,
    spread,
)
from loadtest.traces.offer import Offer

TENANTS = "arrival_s,tenant,prompt_tokens,output_tokens\n"
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return tmp_path / "trace.csv"


def test_a_tenant_csv_is_read_in_order_of_arrival_from_zero(trace: Path) -> None:
    trace.write_text(TENANTS + "2.5,a,10,20\n1.25,b,30,40\n1.25,c,50,60\n")
    assert read_arrivals(trace) == [
        Arrival(0.0, 30, 40, tenant="b"),
        Arrival(0.0, 50, 60, tenant="c"),
        Arrival(1.25, 10, 20, tenant="a"),
    ]


def test_columns_may_come_in_any_order_with_class_priority_and_others(trace: Path) -> None:
    trace.write_text(
        "class,output_tokens,ref_s,prompt_tokens,tenant,arrival_s,priority\nchat,2,0.1,1,a,0,-3\n"
    )
    assert read_arrivals(trace) == [Arrival(0, 1, 2, "a", "chat", -3)]
    trace.write_text(TENANTS.strip() + ",max_tokens\n0,a,1,2,64\n")
    assert read_arrivals(trace) == [Arrival(0, 1, 2, "a", max_tokens=64)]


def test_an_azure_csv_is_read_to_the_microsecond(trace: Path) -> None:
    trace.write_text(
        AZURE + "2023-11-16 23:59:59.6805900,374,44\n2023-11-17 00:00:00.9951691,396,109\n"
    )
    assert read_arrivals(trace) == [Arrival(0.0, 374, 44), Arrival(1.314579, 396, 109)]


def test_an_azure_csv_may_have_a_zone(trace: Path) -> None:
    trace.write_text(
        AZURE + "2024-05-10 00:00:00.009930+00:00,5,6\n2024-05-10 00:00:01.009930+00:00,7,8\n"
    )
    assert [arrival.at for arrival in read_arrivals(trace)] == [0.0, 1.0]


def test_gzip_is_told_from_the_content_and_a_byte_order_mark_is_no_letter(tmp_path: Path) -> None:
    text = TENANTS + "0,a,10,20\n"
    plain, zipped, marked = (tmp_path / name for name in ("a.csv", "b", "c.csv"))
    plain.write_text(text)
    zipped.write_bytes(gzip.compress(text.encode()))
    marked.write_text("\ufeff" + text.replace("\n", "\r\n"), newline="")
    assert read_arrivals(plain) == read_arrivals(zipped) == read_arrivals(marked)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            TENANTS + "0,a,10,20\n0,a,x,20\n",
            "trace.csv:3: prompt_tokens: expected an integer, got 'x'",
        ),
        (TENANTS + "0,a,10\n", "trace.csv:2: 3 cells under 4 columns"),
        (TENANTS + "0,a,10,0\n", "trace.csv:2: .* must be at least 1"),
        (TENANTS + "0,a,0,10\n", "trace.csv:2: .* must be at least 1"),
        (TENANTS + "-1,a,10,10\n", "trace.csv:2: a request cannot arrive at -1.0 s"),
        (TENANTS + "nan,a,10,10\n", "trace.csv:2: a request cannot arrive at nan s"),
        (TENANTS + "1e300,a,10,10\n", r"trace.csv:2: a request cannot arrive at 1e\+300 s"),
        (TENANTS + f"0,a,{10**30},10\n", "trace.csv:2: .* at most 10,000,000 prompt"),
        (TENANTS + "0,a,10,10000001\n", "trace.csv:2: .* at most 10,000,000 prompt"),
        (TENANTS + "0,a,1.5,10\n", "trace.csv:2: prompt_tokens: expected an integer, got '1.5'"),
        (TENANTS + "soon,a,1,10\n", "trace.csv:2: arrival_s: expected seconds, got 'soon'"),
        (AZURE + "yesterday,1,2\n", "trace.csv:2: TIMESTAMP: expected a date and time"),
        (TENANTS, "trace.csv: there are no requests"),
        ("", "trace.csv:1: the header is that of no known format"),
        ("a,b\n1,2\n", r"trace.csv:1: .*tenant CSV: arrival_s"),
    ],
)
def test_a_bad_trace_is_an_error_that_names_file_and_line(
    trace: Path, content: str, message: str
) -> None:
    trace.write_text(content)
    with pytest.raises(TraceError, match=message):
        read_arrivals(trace)


@pytest.mark.parametrize(
    "content", [b"\xff\xfe\x00", gzip.compress(b"x" * 99, mtime=0)[:-9], b"\x1f\x8bno"]
)
def test_what_is_no_text_is_an_error_that_names_the_file(trace: Path, content: bytes) -> None:
    trace.write_bytes(content)
    with pytest.raises(TraceError, match=r"trace\.csv: (is not UTF-8|cannot be read)"):
        read_arrivals(trace)


def test_a_missing_file_is_an_error_that_names_it(trace: Path) -> None:
    with pytest.raises(TraceError, match=r"trace\.csv: cannot be read: No such file"):
        read_arrivals(trace)


def mooncake(**changes: Any) -> str:
    row = {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 7]}
    return json.dumps(row | changes) + "\n"


def test_mooncake_lines_name_blocks_of_512_tokens_and_tell_milliseconds(trace: Path) -> None:
    trace.write_text(mooncake(timestamp=1500) + "\n" + mooncake(timestamp=0, hash_ids=[0, 8]))
    first, second = read_arrivals(trace)
    assert (first.at, second.at) == (0.0, 1.5)
    assert (first.prompt_tokens, first.output_tokens) == (600, 5)
    assert first.prefix == Prefix((0, 8), 512)
    assert second.prefix == Prefix((0, 7), 512)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hash_ids": [1]}, "1 names of 512 tokens for a prompt of 600"),
        ({"hash_ids": [1, 2, 3]}, "3 names"),
        ({"hash_ids": [1, "2"]}, "hash_ids: expected a list of integers"),
        ({"hash_ids": [1, -2]}, "neither negative"),
        ({"timestamp": "now"}, "timestamp: expected milliseconds, got 'now'"),
        ({"input_length": 1.5}, "input_length: expected an integer, got 1.5"),
        ({"output_length": None}, "output_length: expected an integer, got None"),
    ],
)
def test_a_bad_line_of_json_is_named(trace: Path, change: dict[str, Any], message: str) -> None:
    trace.write_text(mooncake() + mooncake(**change))
    with pytest.raises(TraceError, match=rf"trace\.csv:2: .*{message}"):
        read_arrivals(trace)


def test_a_line_that_is_no_json_is_named(trace: Path) -> None:
    trace.write_text(mooncake() + "{")
    with pytest.raises(TraceError, match=r"trace\.csv:2: is no JSON"):
        read_arrivals(trace)


def test_prompts_that_begin_with_the_same_names_share_as_many_keys() -> None:
    one, other = Prefix((3, 4, 5), 512), Prefix((3, 4, 6), 512)
    first, second = one.keys(1100), other.keys(1200)
    assert (len(first), len(second)) == (1100 // 16, 1200 // 16)
    assert first[:64] == second[:64]
    assert not set(first[64:]) & set(second)
    assert len(set(first)) == len(first)
    assert all(len(key) == KEY_BYTES for key in first)


def test_names_of_single_blocks_are_their_keys() -> None:
    assert Prefix((2, 9)).keys(40) == [(2).to_bytes(KEY_BYTES, "big"), (9).to_bytes(16, "big")]


def test_a_request_asks_for_no_less_than_it_gets() -> None:
    assert Arrival(0, 1, 5, max_tokens=9).asked_tokens == 9
    with pytest.raises(ValueError, match="5 output tokens where 4 may be"):
        Arrival(0, 1, 5, max_tokens=4)


def test_a_list_of_lengths_has_no_times_of_its_own(trace: Path) -> None:
    trace.write_text("num_prefill_tokens,num_decode_tokens\n3,4\n5,6\n")
    read = read_trace(trace)
    assert not read.timed
    assert read.arrivals == [Arrival(0.0, 3, 4), Arrival(0.0, 5, 6)]
    with pytest.raises(BadConfiguration, match="--rate"):
        Offer(trace).arrivals()
    assert [each.at > 0 for each in Offer(trace, rate=2.0).arrivals()] == [False, True]


def test_a_rate_keeps_the_pattern_of_the_gaps() -> None:
    arrivals = [Arrival(at, 1, 1) for at in (0.0, 1.0, 4.0)]
    assert [each.at for each in at_rate(arrivals, 4.0)] == [0.0, 0.125, 0.5]
    with pytest.raises(ValueError, match="all of its requests arrive at once"):
        rate_of(arrivals[:1])


@pytest.mark.parametrize(("burstiness", "variation"), [(1.0, 1.0), (0.25, 2.0), (100.0, 0.1)])
def test_drawn_arrivals_have_the_rate_and_the_burstiness(
    burstiness: float, variation: float
) -> None:
    arrivals = drawn([Arrival(0.0, 1, 1)] * 20_000, 5.0, burstiness)
    gaps = [after.at - before.at for before, after in itertools.pairwise(arrivals)]
    assert rate_of(arrivals) == pytest.approx(5.0, rel=0.05)
    assert statistics.stdev(gaps) * 5.0 == pytest.approx(variation, rel=0.05)
    assert arrivals[:99] == drawn([Arrival(0.0, 1, 1)] * 99, 5.0, burstiness)
    assert arrivals[:99] != drawn([Arrival(0.0, 1, 1)] * 99, 5.0, burstiness, seed=1)


def test_requests_of_one_time_are_spread_up_to_the_next() -> None:
    arrivals = [Arrival(at, 1, 1) for at in (0.0, 0.0, 0.0, 3.0, 5.0, 5.0)]
    assert [each.at for each in spread(arrivals)] == [0.0, 1.0, 2.0, 3.0, 5.0, 6.0]


def test_options_that_contradict_each_other_are_refused(trace: Path) -> None:
    for offer, option in (
        (Offer(trace, speed=2.0, rate=1.0), "--speed"),
        (Offer(trace, burstiness=1.0), "--burstiness"),
    ):
        with pytest.raises(BadConfiguration, match=option):
            offer.arrivals()


def test_speed_divides_the_times() -> None:
    arrivals = [Arrival(0.0, 1, 1), Arrival(3.0, 1, 1)]
    assert [arrival.at for arrival in at_speed(arrivals, 2.0)] == [0.0, 1.5]
    with pytest.raises(ValueError):
        at_speed(arrivals, 0.0)
