"""Reading trace files: plain or gzipped, the format told from the header."""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from engine.errors import ConfigurationError
from loadtest.traces.arrival import Arrival, from_first
from loadtest.traces.columns import format_of

_GZIP: Final = b"\x1f\x8b"


class TraceError(ConfigurationError):
    """A trace that cannot be read; the message names the file, and the line where there is one."""


def read_arrivals(path: Path) -> list[Arrival]:
    """The requests of a trace in order of arrival, the first one at 0.

    Raises TraceError for a file that cannot be read, for one of an unknown format, and for a row
    that is no request.
    """
    arrivals = list(_rows(path, _text(path)))
    if not arrivals:
        raise TraceError(f"{path}: there are no requests in it")
    return from_first(arrivals)


def _text(path: Path) -> str:
    try:
        content = path.read_bytes()
        if content.startswith(_GZIP):
            content = gzip.decompress(content)
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise TraceError(f"{path}: is not UTF-8 text") from None
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise TraceError(f"{path}: cannot be read: {reason}") from None


def _rows(path: Path, text: str) -> Iterator[Arrival]:
    """Each row as a request; empty lines are none."""
    lines = csv.reader(io.StringIO(text, newline=""))
    try:
        header = [name.strip() for name in next(lines, [])]
        read = format_of(header).read
        for cells in filter(None, lines):
            if len(cells) != len(header):
                raise ValueError(f"{len(cells)} cells under {len(header)} columns")
            yield read(dict(zip(header, cells, strict=True)))
    except (ValueError, csv.Error) as error:
        raise TraceError(f"{path}:{max(1, lines.line_num)}: {error}") from None
