"""GET / and the files that it needs: the page, the same for everybody and nothing secret in it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

FOLDER: Final = Path(__file__).parents[1] / "page"

TYPES: Final[Mapping[str, str]] = MappingProxyType(
    {
        ".html": "text/html; charset=utf-8",
        ".css": "text/css; charset=utf-8",
        ".js": "text/javascript; charset=utf-8",
        ".svg": "image/svg+xml",
    }
)
"""What is served of the folder; licences are not."""

POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
    )
)
"""Scripts are files of ours, nothing comes from or goes to another server, nobody frames it. An
answer of the model is text: no script can turn one into markup."""

HEADERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "content-security-policy": POLICY,
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cross-origin-opener-policy": "same-origin",
        "cross-origin-resource-policy": "same-origin",
        "cache-control": "no-cache",  # kept, and asked about: an update is seen at once
    }
)


@dataclass(frozen=True, slots=True)
class PageFile:
    """A file of the page, read once; its tag is made from what is in it."""

    path: str
    content: bytes
    media_type: str
    tag: str

    async def answer(self, request: Request) -> Response:
        """The file, or 304 for who has it already."""
        headers = {**HEADERS, "etag": self.tag}
        known = request.headers.get("if-none-match", "")
        if known.strip() == "*" or self.tag in _tags(known):
            return Response(status_code=304, headers=headers)
        return Response(self.content, media_type=self.media_type, headers=headers)


def page_files() -> Iterator[PageFile]:
    """The page at `/`, and each file that it asks for below `/page`."""
    for file in sorted(FOLDER.rglob("*")):
        if file.suffix in TYPES:
            content = file.read_bytes()
            name = file.relative_to(FOLDER).as_posix()
            path = "/" if name == "index.html" else f"/page/{name}"
            tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
            yield PageFile(path, content, TYPES[file.suffix], tag)


PAGE: Final = tuple(page_files())


def _tags(header: str) -> list[str]:
    """Tags as If-None-Match lists them; whether a proxy has called one weak does not matter."""
    return [tag.strip().removeprefix("W/") for tag in header.split(",")]
