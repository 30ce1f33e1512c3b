"""Reading recordings: their files in order, also where the last one was cut off."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from app.recording.files import FORMAT, PATTERN
from engine.errors import ConfigurationError

_NAME: Final = re.compile(r"(?P<recording>.+-[0-9a-f]{8})-(?P<part>\d{5,})\.jsonl\.gz")
_GZIP: Final = 31
_CHUNK: Final = 2**20


class RecordingError(ConfigurationError):
    """A recording that cannot be read; the message names the file."""


@dataclass(frozen=True, slots=True)
class RecordingFiles:
    """The files of one recording that there are, in order. header: what the first of them says."""

    parts: tuple[Path, ...]
    header: dict[str, Any]

    @property
    def whole(self) -> bool:
        """Whether it is there from the beginning on: only then it can be decided again."""
        return bool(self.header["part"] == 0)

    def rows(self) -> Iterator[dict[str, Any]]:
        """All rows but the headers. Raises RecordingError for a file that is damaged or missing."""
        for number, path in enumerate(self.parts, self.header["part"]):
            rows = _rows(path, may_be_cut=path == self.parts[-1])
            header = _header(path, next(rows, None))
            if header["part"] != number:
                raise RecordingError(f"{path}: part {number} is missing before it")
            yield from rows


def is_recording(path: Path) -> bool:
    """Whether there is a recording at a path: a directory with some, or a file of one."""
    if path.is_dir():
        return any(path.glob(PATTERN))
    return _NAME.fullmatch(path.name) is not None


def find_recording(path: Path) -> RecordingFiles:
    """The latest recording in a directory, or the one that a file is part of.

    Raises RecordingError if there is none, or if this version cannot read it.
    """
    directory = path if path.is_dir() else path.parent
    names = sorted(
        filter(None, (_NAME.fullmatch(each.name) for each in _files(directory))), key=_order
    )
    if not path.is_dir():
        wanted = _NAME.fullmatch(path.name)
        names = [each for each in names if wanted and each["recording"] == wanted["recording"]]
    if not names:
        raise RecordingError(f"{path}: there is no recording")
    latest = names[-1]["recording"]
    parts = tuple(directory / each.string for each in names if each["recording"] == latest)
    first = _rows(parts[0], may_be_cut=len(parts) == 1)
    return RecordingFiles(parts, _header(parts[0], next(first, None)))


def _files(directory: Path) -> list[Path]:
    try:
        return list(directory.glob(PATTERN))
    except OSError as error:
        raise RecordingError(f"{directory}: cannot be read: {error.strerror}") from None


def _order(name: re.Match[str]) -> tuple[str, int]:
    return name["recording"], int(name["part"])


def _header(path: Path, row: dict[str, Any] | None) -> dict[str, Any]:
    if row is None or "recording" not in row:
        raise RecordingError(f"{path}: it does not begin as a recording does")
    if row.get("format") != FORMAT:
        raise RecordingError(
            f"{path}: a recording of format {row.get('format')}; this version reads {FORMAT}"
        )
    return row


def _rows(path: Path, *, may_be_cut: bool) -> Iterator[dict[str, Any]]:
    """The lines of a file. The last one is left out where it was cut off, if it may have been."""
    try:
        for line, complete in _lines(path):
            if not complete:
                if may_be_cut:
                    return
                raise RecordingError(f"{path}: it was cut off, and is not the last file")
            yield orjson.loads(line)
    except OSError as error:
        raise RecordingError(f"{path}: cannot be read: {error.strerror}") from None
    except (zlib.error, orjson.JSONDecodeError) as error:
        raise RecordingError(f"{path}: it is damaged: {error}") from None


def _lines(path: Path) -> Iterator[tuple[bytes, bool]]:
    """Lines, and whether each is complete. Behind a stream that was cut comes one that is not."""
    stream = zlib.decompressobj(_GZIP)
    rest = b""
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            *lines, rest = (rest + stream.decompress(chunk)).split(b"\n")
            for line in lines:
                yield line, True
    if rest or not stream.eof:
        yield rest, False
