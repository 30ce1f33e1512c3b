"""Errors: their four keys, and which status and headers a failure gets."""

import json
import math

import pytest

from app.errors import context_exceeded, from_failure, model_not_found, not_ready, overloaded
from engine.outputs import Failure, FailureKind


@pytest.mark.parametrize(
    ("kind", "status", "type", "code"),
    [
        (FailureKind.NEVER_FITS, 400, "invalid_request_error", "context_length_exceeded"),
        (FailureKind.SHED, 429, "overloaded_error", "queue_full"),
        (FailureKind.DEADLINE, 503, "server_error", "deadline_exceeded"),
        (FailureKind.SHUTTING_DOWN, 503, "server_error", "shutting_down"),
        (FailureKind.NOT_READY, 503, "server_error", "not_ready"),
        (FailureKind.CLIENT_LAGGED, 408, "invalid_request_error", "client_lagged"),
        (FailureKind.GRAMMAR, 400, "invalid_request_error", "grammar_failed"),
        (FailureKind.ENGINE_FAULT, 500, "server_error", "internal_error"),
    ],
)
def test_each_failure_has_its_status(kind, status, type, code):
    error = from_failure(Failure(kind, "it did not work"))
    assert error.status == status
    assert json.loads(error.body()) == {
        "error": {"message": "It did not work.", "type": type, "param": None, "code": code}
    }
    assert ("retry-after" in error.headers) == (status in (429, 503))


def test_every_kind_of_failure_is_translated():
    assert all(from_failure(Failure(kind, "x")).status >= 400 for kind in FailureKind)


def test_a_missed_deadline_is_not_to_be_retried():
    error = from_failure(Failure(FailureKind.DEADLINE, "too late"))
    assert error.headers["x-should-retry"] == "false"


@pytest.mark.parametrize(
    ("wanted", "seconds", "milliseconds"),
    [
        (None, "1", "1000"),
        (0.0, "1", "1000"),
        (1.5, "2", "1500"),
        (7200.0, "59", "59000"),
        (math.inf, "1", "1000"),
    ],
)
def test_retry_after_stays_between_1_and_59_seconds(wanted, seconds, milliseconds):
    headers = overloaded("full", wanted).headers
    assert (headers["retry-after"], headers["retry-after-ms"]) == (seconds, milliseconds)


def test_a_dead_engine_is_503_for_those_who_come_later():
    error = not_ready(Failure(FailureKind.ENGINE_FAULT, "the engine has stopped"))
    assert (error.status, error.code) == (503, "not_ready")


def test_context_errors_speak_the_words_that_clients_look_for():
    error = context_exceeded(64, "60", "prompt", 10)
    assert error.message.startswith("This model's maximum context length is 64 tokens. ")
    assert "60" in error.message
    assert "10" in error.message
    assert error.code == "context_length_exceeded"


def test_a_long_model_name_is_not_repeated_in_full():
    assert len(model_not_found("x" * 100_000).message) < 200
