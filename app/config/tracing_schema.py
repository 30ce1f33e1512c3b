"""What can be configured of the spans that OpenTelemetry is sent."""

from __future__ import annotations

import re
from typing import Annotated, Final, TypeAlias
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr

from app.config.section import HeaderName, Section

_HEADER_VALUE: Final = re.compile(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?")


def web_address(text: str) -> str:
    """Accept an http(s) URL without credentials, which would be printed; raises ValueError."""
    try:
        parts = urlsplit(text)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("expected a URL such as http://localhost:4318/v1/traces")
    if "@" in parts.netloc:
        raise ValueError("credentials belong into tracing.headers")
    return text


def header_value(secret: SecretStr) -> SecretStr:
    """Accept what may stand behind the name of an HTTP header; raises ValueError."""
    if not _HEADER_VALUE.fullmatch(secret.get_secret_value()):
        raise ValueError("expected printable ASCII characters")
    return secret


WebAddress: TypeAlias = Annotated[str, AfterValidator(web_address)]
HeaderValue: TypeAlias = Annotated[SecretStr, AfterValidator(header_value)]


class TracingConfig(Section):
    """Spans for OpenTelemetry; where this says null, its OTEL_* variables have a say."""

    enabled: bool = Field(
        default=False, description="whether each request makes a span; pip install 'octavo[otel]'"
    )
    endpoint: WebAddress | None = Field(
        default=None,
        description="URL that spans are posted to; null: http://localhost:4318/v1/traces",
    )
    headers: dict[HeaderName, HeaderValue] = Field(
        default={}, description="headers to post with them, as for a key; never shown"
    )
    sample_ratio: Annotated[float, Field(ge=0, le=1)] | None = Field(
        default=None, description="share of the traces that begin here; null: all"
    )
    max_queued: Annotated[int, Field(ge=1, le=2**20)] = Field(
        default=2048, description="most spans that wait to be posted; then the oldest are lost"
    )
    timeout_s: Annotated[float, Field(gt=0, le=60)] = Field(
        default=5.0, description="how long a collector may take; at the end, for all that waits"
    )
    stop_strings: bool = Field(
        default=False, description="whether spans hold stop strings, which are words of clients"
    )
