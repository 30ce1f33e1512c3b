"""How spans are configured, and that the document has all of their attributes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from app.config import checks, load_config
from app.record import Record
from app.tracing import attributes as module
from app.tracing.attributes import attributes
from app.tracing.spans import open_spans
from engine.errors import ConfigurationError

DOCUMENT = Path(__file__).parents[2] / "docs" / "traces.md"
ON = "tracing.enabled=true"


def test_nothing_is_imported_or_made_unless_somebody_wants_it():
    assert open_spans(load_config().tracing, "m", "0") is None


def test_a_missing_package_is_named_with_the_key_and_the_command(monkeypatch):
    monkeypatch.setattr(checks, "has_opentelemetry", lambda: False)
    with pytest.raises(ConfigurationError) as caught:
        load_config(overrides=[ON])
    assert str(caught.value) == (
        "--set: tracing.enabled: needs OpenTelemetry, which is not installed; "
        "pip install 'octavo[otel]'"
    )
    assert not load_config().tracing.enabled


@pytest.mark.parametrize("gone", ["opentelemetry", "opentelemetry.exporter", "no.such.package"])
def test_it_is_told_without_importing_whether_the_package_is_there(monkeypatch, gone):
    def lacking(name):
        raise ModuleNotFoundError(gone)

    monkeypatch.setattr(checks, "find_spec", lacking)
    assert not checks.has_opentelemetry()


@pytest.mark.parametrize(
    "url",
    ["localhost:4318", "grpc://a:4317", "http://", "http://[a", "http://u:s3cret@a/v1/traces"],
)
def test_an_endpoint_is_a_url_and_its_credentials_are_never_shown(url):
    with pytest.raises(ConfigurationError) as caught:
        load_config(overrides=[f'tracing.endpoint="{url}"'])
    assert str(caught.value).startswith("--set: tracing.endpoint: ")
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("value", ["{a b: s3cret}", "{a: 's3cret\t'}", "{a: ''}", "{a: [s3cret]}"])
def test_headers_are_headers_and_are_never_shown(value):
    with pytest.raises(ConfigurationError) as caught:
        load_config(overrides=[f"tracing.headers={value}"])
    assert str(caught.value).startswith("--set: tracing.headers")
    assert "s3cret" not in str(caught.value)


def test_every_attribute_is_in_the_document_and_no_other():
    told = re.findall(r"^\| `([a-z0-9_.]+)` \|", DOCUMENT.read_text(), re.MULTILINE)
    used = re.findall(
        r'"((?:gen_ai|http|octavo|error)\.[\w.]+)"', Path(module.__file__).read_text()
    )
    assert sorted(told) == sorted(used)


def test_a_request_that_was_never_read_has_what_is_known_of_it():
    record = Record("r", status=429, tenant="acme", error="queue_full")
    found = attributes(record, operation="chat", model="m", duration=0.5, stop_strings=False)
    assert found == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "octavo",
        "gen_ai.request.model": "m",
        "gen_ai.request.id": "r",
        "gen_ai.latency.e2e": 0.5,
        "http.response.status_code": 429,
        "octavo.tenant": "acme",
        "error.type": "queue_full",
    }
