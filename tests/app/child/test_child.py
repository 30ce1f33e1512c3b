"""A child answers, is ended after its time, and is not started again by a server that ends."""

import io
import sys
from pathlib import Path

import pytest
from support import echoing

from app.child.frames import read_frame, write_frame
from app.child.process import Child, NoChild


@pytest.fixture
def child(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(echoing.__file__).parents[1]))
    child = Child("support.echoing", b"hello", "the process that echoes")
    yield child
    child.close()


def test_frames_come_whole_or_not_at_all():
    stream = io.BytesIO()
    for data in (b"", b"one", bytes(70_000)):
        write_frame(stream, data)
    whole = stream.getvalue()
    stream.seek(0)
    assert [read_frame(stream) for _ in range(4)] == [b"", b"one", bytes(70_000), None]
    assert read_frame(io.BytesIO(whole[:3])) is None
    assert read_frame(io.BytesIO(whole[4:9])) is None


def test_it_is_started_when_it_is_asked_first_and_then_stays(child):
    assert child.pid is None
    assert child.ask(b"one", 60.0) == b"hello one"
    pid = child.pid
    assert child.ask(b"two", 60.0) == b"hello two"
    assert child.pid == pid


def test_one_that_takes_too_long_is_ended_and_the_next_question_starts_another(child):
    child.ask(b"one", 60.0)
    pid = child.pid
    with pytest.raises(TimeoutError):
        child.ask(b"sleep", 0.1)
    assert not Path(f"/proc/{pid}").exists()
    assert child.ask(b"two", 60.0) == b"hello two"


def test_one_that_ends_answers_nothing(child):
    assert child.ask(b"die", 60.0) is None
    assert child.end() == 3


def test_what_is_printed_is_no_answer(child):
    assert child.ask(b"print", 60.0) == b"hello print"


def test_one_that_does_not_get_ready_is_no_child():
    child = Child("there.is.no.such.module", b"", "the process that is not")
    with pytest.raises(NoChild, match="the process that is not ended with 1"):
        child.ask(b"one", 60.0)


def test_a_server_that_ends_starts_none(child):
    child.ask(b"one", 60.0)
    child.close()
    assert child.pid is None
    with pytest.raises(NoChild, match="shutting down"):
        child.ask(b"two", 60.0)


@pytest.mark.skipif(sys.platform != "linux", reason="memory is bounded on Linux")
def test_more_memory_than_it_may_have_is_refused(child):
    assert child.ask(b"grow", 60.0) == b"hello MemoryError"
