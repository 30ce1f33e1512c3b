"""What commands ask of a live server's admin routes."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from http.client import HTTPException, HTTPResponse
from typing import Any, Final
from urllib.parse import urlsplit

TIMEOUT_S: Final = 10.0

MOST_BYTES: Final = 256 * 2**20
"""Of a reply; the largest pools take less."""


class Unanswered(Exception):
    """The server did not give what was asked for; the message says why, in one line."""


class AdminClient:
    """Asks one server, with its admin key. Raises ValueError if url or key cannot be used."""

    def __init__(self, url: str, key: str | None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"expected a URL such as http://localhost:8000, got {url!r}")
        if key is not None and not (key.isascii() and key.isprintable()):
            raise ValueError("a key has printable ASCII characters only")
        _ = parts.port  # raises if it is no port
        self.url = url.rstrip("/")
        self._key = key

    def get(self, path: str) -> dict[str, Any]:
        """The JSON object at a path. Raises Unanswered."""
        request = urllib.request.Request(self.url + path, headers={"accept": "application/json"})
        if self._key:
            # A redirect must not carry the key to somebody else.
            request.add_unredirected_header("Authorization", f"Bearer {self._key}")
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as reply:
                document = _document(reply)
        except urllib.error.HTTPError as error:
            with error:
                raise Unanswered(f"{self.url}: {self._refusal(error)}") from error
        except urllib.error.URLError as error:
            raise Unanswered(f"{self.url} cannot be reached: {_reason(error.reason)}") from error
        except OSError as error:  # a connection that breaks, or stays silent, while it is read
            raise Unanswered(f"{self.url} does not answer: {_reason(error)}") from error
        except (HTTPException, ValueError, RecursionError) as error:
            raise Unanswered(f"{self.url} does not answer as Octavo does") from error
        if not isinstance(document, dict):
            raise Unanswered(f"{self.url} does not answer as Octavo does")
        return document

    def _refusal(self, error: urllib.error.HTTPError) -> str:
        if error.code == 404:
            return "there are no admin routes; a server has them once server.admin_key is set"
        if error.code == 401:
            if self._key:
                return "this is not the server's admin key"
            return "the admin key is missing; give it in OCTAVO_ADMIN_KEY, or with --key"
        return f"status {error.code}{_message(error)}"


def _document(reply: HTTPResponse | urllib.error.HTTPError) -> Any:
    """The JSON in a reply. Raises ValueError for anything else, or one without an end."""
    body = reply.read(MOST_BYTES + 1)
    if len(body) > MOST_BYTES:
        raise ValueError(f"a reply of more than {MOST_BYTES} bytes")
    return json.loads(body)


def _reason(error: object) -> str:
    """What went wrong on the way, without the error's number."""
    text = getattr(error, "strerror", None) or str(error)
    return " ".join(text.lower().split())


def _message(error: urllib.error.HTTPError) -> str:
    """What an error in OpenAI's shape says; empty for any other."""
    try:
        return f": {_document(error)['error']['message']}"
    except (ValueError, LookupError, TypeError, OSError, HTTPException, RecursionError):
        return ""
