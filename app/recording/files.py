"""Files of a recording: compressed lines, one file after the other, the oldest deleted.

    20261130T152350Z-9f3a61c0-00000.jsonl.gz     when it began, which recording, which part

What was flushed can be read however the process ended: every flush ends at a whole byte of the
compressed stream.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final

import orjson

SUFFIX: Final = ".jsonl.gz"
PATTERN: Final = f"*-*-[0-9]*{SUFFIX}"
FORMAT: Final = 1
"""Of the lines; readers refuse others."""

_LEVEL: Final = 5
_GZIP: Final = 31
"""zlib's window bits for a gzip stream."""


class RotatedFiles:
    """Writes lines to files of at most about `max_bytes`, of which `keep` stay in the directory.

    name: in front of all of them. header: begins each of them, with its number as `part`. Raises
    OSError wherever the directory does.
    """

    def __init__(
        self, directory: Path, name: str, header: Mapping[str, Any], max_bytes: int, keep: int
    ) -> None:
        self._directory = directory
        self._name = name
        self._header = header
        self._max_bytes = max_bytes
        self._keep = keep
        self._part = 0
        self._written = 0
        self._file: BinaryIO | None = None
        self._stream = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)

    def write(self, lines: bytes) -> None:
        """Add whole lines, and have them on their way to the disk."""
        if self._file is None:
            self._begin()
        self._put(self._stream.compress(lines) + self._stream.flush(zlib.Z_SYNC_FLUSH))
        if self._written >= self._max_bytes:
            self.close()

    def close(self) -> None:
        """End the file; more lines begin another one."""
        if self._file is None:
            return
        self._put(self._stream.flush(zlib.Z_FINISH))
        self._file.close()
        self._file = None
        self._part += 1

    def _begin(self) -> None:
        path = self._directory / f"{self._name}-{self._part:05d}{SUFFIX}"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        self._file = os.fdopen(descriptor, "wb", buffering=0)
        self._stream = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
        self._written = 0
        header = {**self._header, "part": self._part}
        self._put(self._stream.compress(orjson.dumps(header, option=orjson.OPT_APPEND_NEWLINE)))
        for old in sorted(self._directory.glob(PATTERN))[: -self._keep]:
            if old != path:
                old.unlink(missing_ok=True)

    def _put(self, content: bytes) -> None:
        assert self._file is not None, "a file is begun before it is written to"
        left = memoryview(content)
        while left:
            left = left[self._file.write(left) :]
        self._written += len(content)
