"""Reading trace files: plain or gzipped, the format told from the beginning."""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from engine.errors import ConfigurationError
from engine.simulation.arrival import Arrival
from loadtest.recordings.files import find_recording, is_recording
from loadtest.traces.columns import format_of
from loadtest.traces.mooncake import arrival_of
from loadtest.traces.recorded import recorded_arrivals
from loadtest.traces.timing import from_first

_GZIP: Final = b"\x1f\x8b"


class TraceError(ConfigurationError):
    """A trace that cannot be read; the message names the file, and the line where there is one."""


@dataclass(frozen=True, slots=True)
class Trace:
    """The requests of a file in order of arrival, the first one at 0.

    timed: whether the file says when they arrive; if not, all are at 0.
    """

    arrivals: list[Arrival]
    timed: bool


def read_arrivals(path: Path) -> list[Arrival]:
    """The requests of `read_trace`."""
    return read_trace(path).arrivals


def read_trace(path: Path) -> Trace:
    """Read a trace.

    Raises TraceError for a file that cannot be read, for one of an unknown format, and for a row
    that is no request.
    """
    if is_recording(path):
        return Trace(from_first(_recorded(path)), timed=True)
    text = _text(path)
    if text.lstrip().startswith("{"):
        timed, arrivals = True, list(_lines(path, text))
    else:
        timed, arrivals = _table(path, text)
    if not arrivals:
        raise TraceError(f"{path}: there are no requests in it")
    return Trace(from_first(arrivals), timed)


def _recorded(path: Path) -> list[Arrival]:
    """The requests of a recording; raises ConfigurationError for one that cannot be read."""
    try:
        arrivals = recorded_arrivals(find_recording(path))
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise TraceError(f"{path}: the recording is damaged: {error!r}") from error
    if not arrivals:
        raise TraceError(f"{path}: there are no requests in it")
    return arrivals


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


def _lines(path: Path, text: str) -> Iterator[Arrival]:
    """Each line of JSON as a request; empty lines are none."""
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            yield arrival_of(line)
        except ValueError as error:
            raise TraceError(f"{path}:{number}: {error}") from None


def _table(path: Path, text: str) -> tuple[bool, list[Arrival]]:
    """Whether a CSV file has times, and each row as a request; empty lines are none."""
    lines = csv.reader(io.StringIO(text, newline=""))
    try:
        header = [name.strip() for name in next(lines, [])]
        known = format_of(header)
        arrivals = []
        for cells in filter(None, lines):
            if len(cells) != len(header):
                raise ValueError(f"{len(cells)} cells under {len(header)} columns")
            arrivals.append(known.read(dict(zip(header, cells, strict=True))))
        return known.timed, arrivals
    except (ValueError, csv.Error) as error:
        raise TraceError(f"{path}:{max(1, lines.line_num)}: {error}") from None
