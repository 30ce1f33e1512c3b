"""A recording from its configuration: made with the engine, begun and ended with it."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path

from app.config.record_schema import RecordConfig
from app.config.schema import Config
from app.problems import BadConfiguration, Problem
from app.recording.files import FORMAT, RotatedFiles
from app.recording.header import coefficients, describe
from app.recording.names import Names
from app.recording.writer import RecordingWriter
from engine.inbox import PolicyName
from engine.loop import Engine
from engine.recorder import Recorder, Turn


class Recording:
    """What an engine is given, to files. `recorder` is for the engine; then `begin`, then `close`.

    Raises BadConfiguration for a directory that cannot be made.
    """

    def __init__(self, config: Config) -> None:
        record = config.record
        assert record.directory is not None, "nobody wants to be recorded"
        self._record = record
        self._directory = Path(record.directory)
        self._names = Names([*config.tenants, *config.classes])
        self._policy = PolicyName(config.scheduler.policy, config.scheduler.params)
        self._writer: RecordingWriter | None = None
        self.recorder = Recorder(self._take)
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            message = f"{record.directory} cannot be made: {error.strerror}"
            raise BadConfiguration(Problem("record.directory", message)) from error

    def begin(self, engine: Engine) -> None:
        """Write from now on; the engine has not taken a step yet."""
        began = datetime.now(UTC)
        mark = secrets.token_hex(4)
        header = {
            "recording": mark,
            "format": FORMAT,
            "octavo": version("octavo"),
            "began": began.isoformat(timespec="seconds"),
            "engine": describe(engine, self._policy, self._names),
        }
        name = f"{began:%Y%m%dT%H%M%SZ}-{mark}"
        files = _files(self._directory, name, header, self._record)
        self._writer = RecordingWriter(files, self._names, partial(coefficients, engine.cost))
        self._writer.start()

    def close(self) -> None:
        """Write what there is; the engine takes no more steps."""
        if self._writer is not None:
            self._writer.close()

    @property
    def cpu_s(self) -> float:
        """CPU seconds that writing has taken, beside the engine."""
        return 0.0 if self._writer is None else self._writer.cpu_s

    def _take(self, turn: Turn) -> None:
        if self._writer is not None:
            self._writer.take(turn)


def _files(
    directory: Path, name: str, header: dict[str, object], record: RecordConfig
) -> RotatedFiles:
    return RotatedFiles(directory, name, header, record.max_bytes, record.keep)


def open_recording(config: Config) -> Recording | None:
    """The recording that a configuration asks for, if it does. Raises BadConfiguration."""
    return None if config.record.directory is None else Recording(config)
