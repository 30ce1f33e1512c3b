"""Grammars are tried out by a process that may end: what it says, and what ends it."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from app.structured.bounds import Unfit
from app.structured.vetter import NotVetted, TookTooLong, Vetter
from app.structured.vocabulary import Vocabulary
from app.text.tokenizer import ByteTokenizer

ENDLESS = "start: A0\n" + "".join(f"A{i}: A{i + 1} A{i + 1}\n" for i in range(60)) + 'A60: "x"'
MEETING = [{"type": "string", "pattern": f"(x|y)*x(x|y){{{size}}}"} for size in range(18)]
INSATIABLE = "start: x\nx: %json " + json.dumps({"allOf": MEETING})
"""Nobody looks at how many patterns meet in grammars of the server's own."""
BOTTOMLESS = "start: a0\n" + "".join(f"a{i}: a{i + 1}\n" for i in range(200_000)) + 'a200000: "x"'


@pytest.fixture
def vetter():
    vetter = Vetter(Vocabulary.of(ByteTokenizer()).dump(), timeout_s=60.0)
    yield vetter
    vetter.close()


def works(vetter):
    return "abc" in vetter.vet("regex", "abc+")


def test_one_process_tries_all(vetter):
    assert vetter.pid is None  # it is not there before it is needed
    assert works(vetter)
    pid = vetter.pid
    with pytest.raises(Unfit, match="regex"):
        vetter.vet("regex", "([a-z")
    with pytest.raises(Unfit, match="8192"):
        vetter.vet("regex", "a" * 9000)
    assert works(vetter)
    assert vetter.pid == pid


def test_a_grammar_is_not_blamed_for_a_process_that_was_killed(vetter):
    """The system does so when it is out of memory, and its operator may."""
    assert works(vetter)
    pid = vetter.pid
    os.kill(pid, signal.SIGSTOP)  # so that it is killed in the middle of the next one
    killing = threading.Timer(0.2, os.kill, (pid, signal.SIGKILL))
    killing.start()
    assert works(vetter)
    killing.join()
    assert vetter.pid != pid


def test_what_takes_too_long_is_ended(vetter):
    assert works(vetter)
    pid = vetter.pid
    vetter.timeout_s = 0.5
    with pytest.raises(TookTooLong):
        vetter.vet("grammar", ENDLESS)
    assert not Path(f"/proc/{pid}").exists()
    vetter.timeout_s = 60.0
    assert works(vetter)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory is bounded on Linux")
def test_what_takes_too_much_memory_ends_its_process_and_not_the_server(vetter):
    with pytest.raises(Unfit, match="memory"):
        vetter.vet("tools", INSATIABLE)
    assert works(vetter)


def test_what_recurses_too_deeply_ends_its_process_and_not_the_server(vetter):
    with pytest.raises(Unfit, match="stack"):
        vetter.vet("tools", BOTTOMLESS)
    assert works(vetter)


@pytest.mark.parametrize(
    "schema",
    [
        {"anyOf": [{"properties": {f"k{i}": {}}, "required": [f"k{i}"]} for i in range(700)]},
        {"properties": {f"p{i}": {"type": "string"} for i in range(2000)}, "type": "object"},
        {"properties": {f"p{i}": {"type": "string"} for i in range(300)}, "type": "object"},
    ],
    ids=["any of 700 objects", "2000 optional properties", "300 optional properties"],
)
def test_what_goes_wrong_at_the_first_tokens_is_not_let_in(vetter, schema):
    with pytest.raises(Unfit):
        vetter.vet("json", json.dumps(schema))


def test_signals_for_the_server_do_not_end_it(vetter):
    assert works(vetter)
    pid = vetter.pid
    assert os.getpgid(pid) != os.getpgid(0)  # so those of a terminal do not even come
    assert os.getsid(pid) == os.getsid(0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(pid, number)
    assert works(vetter)
    assert vetter.pid == pid


def test_one_that_was_killed_is_replaced(vetter):
    assert works(vetter)
    pid = vetter.pid
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert works(vetter)
    assert vetter.pid != pid


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_it_holds_no_socket_of_the_server(vetter):
    with socket.socket() as listening:
        listening.set_inheritable(True)
        assert works(vetter)
        opened = [os.readlink(each) for each in Path(f"/proc/{vetter.pid}/fd").iterdir()]
    assert opened
    assert not [each for each in opened if each.startswith("socket:")]


def test_it_ends_with_its_input(vetter):
    """So also when the server was killed."""
    assert works(vetter)
    process = vetter.child.process
    process.stdin.close()
    assert process.wait(60) == 0


def test_it_ends_with_the_server_and_is_not_started_again(vetter):
    assert works(vetter)
    pid = vetter.pid
    vetter.close()
    assert not Path(f"/proc/{pid}").exists()
    with pytest.raises(NotVetted, match="shutting down"):
        works(vetter)


def test_it_imports_nothing_that_is_large():
    code = (
        "import sys, app.structured.vetting, app.structured.compiler, app.structured.vocabulary\n"
        "print(*{'torch', 'numpy', 'starlette', 'pydantic', 'tokenizers'} & set(sys.modules))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == ""
