"""The writer: hands over quickly, bounded, and ends the recording where it cannot keep up."""

from __future__ import annotations

import threading

import orjson
import pytest
from structlog.testing import capture_logs
from support.engines import Harness

from app.recording.decisions import DecisionHash
from app.recording.names import Names
from app.recording.writer import RecordingWriter
from engine.recorder import Recorder, Turn

WAIT_S = 60


class Lines:
    """Keeps what is written; waits at the gate before it does."""

    def __init__(self) -> None:
        self.rows: list[dict] = []
        self.gate = threading.Event()
        self.entered = threading.Event()
        self.closed = threading.Event()

    def write(self, lines: bytes) -> None:
        self.entered.set()
        assert self.gate.wait(WAIT_S)
        self.rows += [orjson.loads(line) for line in lines.splitlines()]

    def close(self) -> None:
        self.closed.set()


def writer(lines: Lines, most_turns: int = 1000) -> RecordingWriter:
    made = RecordingWriter(lines, Names(), lambda: [0.0] * 5, most_turns, pause_s=0.0)
    made.start()
    return made


def test_turns_are_written_with_the_hash_of_what_was_decided() -> None:
    lines = Lines()
    lines.gate.set()
    made = writer(lines)
    harness = Harness(recorder=Recorder(made.take))
    harness.submit(20, max_tokens=5)
    harness.run()
    made.close()
    turns = [row for row in lines.rows if "now" in row]
    assert turns[0]["mail"][0]["prompt"] == 20
    checks = [row for row in lines.rows if "digest" in row]
    decided = DecisionHash()
    for entry in harness.log.entries:
        decided(*entry)
    assert checks[-1]["digest"] == decided.digest
    assert checks[-1]["turns"] == len(turns)
    assert lines.rows[-1] == {"end": "closed"}
    assert lines.closed.is_set()


def test_a_disk_that_is_too_slow_ends_the_recording_and_nobody_waits() -> None:
    lines = Lines()
    made = writer(lines, most_turns=5)
    made.take(Turn())
    assert lines.entered.wait(WAIT_S)
    with capture_logs() as logs:
        for _ in range(20):  # it waits at the gate: all of these return at once
            made.take(Turn())
        lines.gate.set()
        assert lines.closed.wait(WAIT_S)
        made.close()
    assert lines.rows[-1] == {"end": "lost"}
    assert sum("now" in row for row in lines.rows) == 6
    assert "faster than they could be written" in logs[0]["event"]


def test_a_full_disk_ends_the_recording_and_nothing_else() -> None:
    class Full(Lines):
        def write(self, lines: bytes) -> None:
            raise OSError(28, "No space left on device")

    with capture_logs() as logs:
        made = writer(Full())
        made.take(Turn())
        made.close()
        made.take(Turn())
    assert "No space left" in logs[0]["why"]


def test_who_never_began_ends_at_once() -> None:
    made = RecordingWriter(Lines(), Names(), list)
    made.close()


def test_names_and_blocks_are_hidden_and_stay_equal() -> None:
    names, others = Names(["acme"]), Names(["acme"])
    assert names.name("acme") == names.name("acme") != names.name("umbrella")
    assert names.name("acme") != others.name("acme"), "each recording has its own salt"
    assert names.name("default") == "default"
    assert names.keys([b"1" * 16, b"1" * 16])[:16] == names.keys([b"1" * 16])
    assert names.keys([b"1" * 16]) != others.keys([b"1" * 16])
    hidden = names.params({"weights": {"acme": 2.0}, "order": ["acme", "size"], "n": 3})
    assert hidden == {
        "weights": {names.name("acme"): 2.0},
        "order": [names.name("acme"), "size"],
        "n": 3,
    }


@pytest.mark.parametrize("field", ["acme", "umbrella"])
def test_a_hidden_name_tells_nothing_of_its_length(field) -> None:
    assert len(Names().name(field)) == len(Names().name("x"))
