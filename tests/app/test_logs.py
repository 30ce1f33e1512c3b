"""Logs: one JSON object a line, from whichever logger."""

from __future__ import annotations

import datetime
import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from app.logs import RequestLine, configure_logs, log_request


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """Put the process's loggers back after the test."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    access = logging.getLogger("uvicorn.access")
    access.disabled, access.propagate = False, True
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


def configured(level: str = "info", format: Any = "json") -> io.StringIO:
    stream = io.StringIO()
    configure_logs(level, format, stream)
    return stream


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_every_line_is_a_json_object_with_an_iso_timestamp() -> None:
    stream = configured()
    structlog.stdlib.get_logger("octavo").info("started", port=8000)
    logging.getLogger("uvicorn.error").info("Uvicorn running on %s", "http://x")
    ours, theirs = lines(stream)
    assert (ours["event"], ours["port"], ours["level"]) == ("started", 8000, "info")
    assert (ours["logger"], theirs["logger"]) == ("octavo", "uvicorn.error")
    assert theirs["event"] == "Uvicorn running on http://x"
    for line in (ours, theirs):
        moment = datetime.datetime.fromisoformat(line["timestamp"])
        assert moment.utcoffset() == datetime.timedelta(0)


def test_configuring_again_replaces_the_first_configuration() -> None:
    first, second = configured(), configured()
    logging.getLogger("x").warning("once")
    assert first.getvalue() == ""
    assert len(lines(second)) == 1


def test_lines_below_the_level_are_not_written() -> None:
    stream = configured("warning")
    structlog.stdlib.get_logger("octavo").info("quiet")
    logging.getLogger("x").info("quiet")
    logging.getLogger("x").error("loud")
    assert [line["event"] for line in lines(stream)] == ["loud"]


def test_the_access_log_of_uvicorn_is_silent() -> None:
    stream = configured("debug")
    logging.getLogger("uvicorn.access").info("GET /")
    assert stream.getvalue() == ""
    assert not logging.getLogger("uvicorn.access").hasHandlers()


def test_bound_context_reaches_lines_of_both_kinds() -> None:
    stream = configured()
    structlog.contextvars.bind_contextvars(request_id="r1")
    structlog.stdlib.get_logger("octavo").info("ours")
    logging.getLogger("x").warning("theirs")
    assert [line["request_id"] for line in lines(stream)] == ["r1", "r1"]


@pytest.mark.parametrize("format", ["json", "console"])
def test_a_traceback_shows_no_local_variables(format: str) -> None:
    stream = configured(format=format)

    def compute() -> None:
        prompt = "a secret" + " prompt"
        assert prompt
        raise ValueError("broken")

    try:
        compute()
    except ValueError:
        structlog.stdlib.get_logger("octavo").exception("step failed")
    written = stream.getvalue()
    assert "ValueError: broken" in written
    assert "a secret prompt" not in written


def test_a_traceback_stays_on_its_line() -> None:
    stream = configured()
    try:
        raise ValueError("broken")
    except ValueError:
        logging.getLogger("x").exception("step failed")
    (line,) = lines(stream)
    assert line["exception"].endswith("ValueError: broken")


@pytest.mark.parametrize("value", ["\ud800", 2**80, float("nan"), {1: "a"}, object(), "a\nb"])
def test_no_value_breaks_the_line(value: object) -> None:
    stream = configured()
    structlog.stdlib.get_logger("octavo").info("odd", value=value)
    (line,) = lines(stream)
    assert "value" in line


def test_console_is_text_without_colours_where_nobody_watches() -> None:
    stream = configured(format="console")
    structlog.stdlib.get_logger("octavo").info("started", port=8000)
    assert "started" in stream.getvalue()
    assert "port=8000" in stream.getvalue()
    assert "\x1b" not in stream.getvalue()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_auto_is_text_for_a_terminal_and_json_for_everybody_else() -> None:
    terminal, pipe = Terminal(), io.StringIO()
    for stream in (terminal, pipe):
        configure_logs("info", "auto", stream)
        structlog.stdlib.get_logger("octavo").info("started", port=8000)
    assert not terminal.getvalue().startswith("{")
    assert lines(pipe)[0]["port"] == 8000


def test_console_leaves_out_what_is_not_there() -> None:
    stream = configured(format="console")
    log_request(RequestLine(request_id="r", route="/v1/models", status=200))
    assert "request_id=r" in stream.getvalue()
    assert "None" not in stream.getvalue()


@pytest.mark.parametrize("route", ["/health", "/health/live", "/health/ready", "/metrics"])
def test_probes_are_seen_at_debug_level_only(route: str) -> None:
    quiet = configured("info")
    log_request(RequestLine(request_id="r", route=route, status=200))
    assert quiet.getvalue() == ""
    loud = configured("debug")
    log_request(RequestLine(request_id="r", route=route, status=503))
    assert lines(loud)[0]["level"] == "debug"


def test_a_bug_in_a_probe_is_an_error_all_the_same() -> None:
    stream = configured()
    log_request(RequestLine(request_id="r", route="/metrics", status=500))
    assert lines(stream)[0]["level"] == "error"


def test_a_request_is_one_line_with_every_field() -> None:
    stream = configured()
    log_request(
        RequestLine(
            request_id="chatcmpl-1",
            route="/v1/chat/completions",
            model="m",
            status=200,
            stream=True,
            prompt_tokens=12,
            completion_tokens=3,
            finish_reason="stop",
            queue_s=0.001,
            ttft_s=0.12345678,
            duration_s=1.5,
            tenant="t",
            slo_class="batch",
        )
    )
    (line,) = lines(stream)
    del line["timestamp"]
    assert line == {
        "event": "request",
        "level": "info",
        "logger": "octavo.request",
        "request_id": "chatcmpl-1",
        "route": "/v1/chat/completions",
        "model": "m",
        "status": 200,
        "stream": True,
        "prompt_tokens": 12,
        "completion_tokens": 3,
        "finish_reason": "stop",
        "queue_s": 0.001,
        "ttft_s": 0.123457,
        "duration_s": 1.5,
        "tenant": "t",
        "slo_class": "batch",
        "client_disconnected": False,
        "error": None,
    }


@pytest.mark.parametrize(("status", "level"), [(200, "info"), (429, "info"), (500, "error")])
def test_a_fault_of_the_server_is_logged_as_an_error(status: int, level: str) -> None:
    stream = configured()
    log_request(RequestLine(request_id="r", route="/v1/completions", status=status))
    assert lines(stream)[0]["level"] == level
