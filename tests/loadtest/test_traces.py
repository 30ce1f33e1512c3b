"""Traces: two CSV formats told apart by their header, plain or gzipped; bad rows are named."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from loadtest.traces import Arrival, TraceError, at_speed, read_arrivals

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


def test_speed_divides_the_times() -> None:
    arrivals = [Arrival(0.0, 1, 1), Arrival(3.0, 1, 1)]
    assert [arrival.at for arrival in at_speed(arrivals, 2.0)] == [0.0, 1.5]
    with pytest.raises(ValueError):
        at_speed(arrivals, 0.0)
