"""From the moment the port is taken to the moment the model is loaded."""

import contextlib
import json
import os
import signal
import socket
import time
from pathlib import Path

import httpx2
import pytest
from support.served import HANG_S, Process, serving

from app.config.schema import ServerConfig
from app.listener import Listener
from app.waiting_room import WaitingRoom
from engine.errors import ConfigurationError
from tests.app.test_serve import SIMULATED
from tests.app.text.tiny_tokenizers import train, write_folder

ANY_PORT = ServerConfig(port=0)


@pytest.fixture
def listener():
    one = Listener(ANY_PORT)
    yield one
    one.socket.close()


def test_b55_who_comes_while_the_model_is_loaded_is_told_to_come_again(listener) -> None:
    with WaitingRoom(listener, ANY_PORT), httpx2.Client(base_url=listener.url) as client:
        for method, path in [
            ("GET", "/health"),
            ("GET", "/health/ready"),
            ("POST", "/v1/chat/completions"),
            ("GET", "/nope"),
        ]:
            reply = client.request(method, path, timeout=HANG_S)
            assert (reply.status_code, reply.json()["error"]["code"]) == (503, "not_ready")
            assert int(reply.headers["retry-after"]) >= 1
            assert reply.headers["connection"] == "close"
        assert client.get("/health/live", timeout=HANG_S).status_code == 200


def test_who_was_not_accepted_yet_is_left_to_the_server_that_takes_over(listener) -> None:
    with WaitingRoom(listener, ANY_PORT):
        pass
    with socket.create_connection(listener.socket.getsockname(), timeout=HANG_S) as client:
        client.sendall(b"hello")
        accepted, _ = listener.socket.accept()
        with accepted:
            assert accepted.recv(5) == b"hello"


def test_who_connects_and_asks_nothing_is_not_waited_for(listener) -> None:
    with socket.create_connection(listener.socket.getsockname(), timeout=HANG_S) as client:
        with WaitingRoom(listener, ANY_PORT):
            httpx2.get(listener.url + "/health", timeout=HANG_S)  # accepted after `client`
        with contextlib.suppress(ConnectionResetError):
            assert client.recv(1) == b""


def test_a_load_that_fails_leaves_nothing_behind(listener) -> None:
    with pytest.raises(ConfigurationError), WaitingRoom(listener, ANY_PORT):
        raise ConfigurationError("planted")


def test_a_port_is_taken_from_the_start(listener) -> None:
    port = listener.socket.getsockname()[1]
    with pytest.raises(ConfigurationError, match=rf"server.port: {port} on 127.0.0.1 cannot be"):
        Listener(ServerConfig(port=port))


class SlowFolder:
    """A model folder that cannot be read to its end before it is let go."""

    def __init__(self, path: Path) -> None:
        path.mkdir()
        self.path = write_folder(path, train("byte-level"))
        self._config = self.path / "config.json"
        self._content = self._config.read_bytes()
        self._config.unlink()
        os.mkfifo(self._config)

    def let_go(self) -> None:
        """Once the server reads; fails if it never does."""
        deadline = time.monotonic() + HANG_S
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):  # nobody reads yet
                pipe = os.open(self._config, os.O_WRONLY | os.O_NONBLOCK)
                with os.fdopen(pipe, "wb") as file:
                    file.write(self._content)
                return
            time.sleep(0.02)
        raise AssertionError("nobody reads")


def port_of(one: Process) -> int:
    return int(json.loads(one.told('"loading: '))["event"].split("127.0.0.1:")[1].split()[0])


def test_the_server_is_alive_and_not_ready_until_it_has_loaded(tmp_path) -> None:
    slow = SlowFolder(tmp_path / "slow")
    with serving(tmp_path, *SIMULATED, "--set", f"model.path={slow.path}") as one:
        port = port_of(one)
        with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=HANG_S) as client:
            assert client.get("/health/live").status_code == 200
            assert client.get("/health/ready").status_code == 503
            with serving(tmp_path, *SIMULATED, "--set", f"server.port={port}") as other:
                assert other.wait() == 2
                (message,) = other.lines
                assert message.startswith(f"Error: server.port: {port} on 127.0.0.1 cannot be")
            slow.let_go()
            assert one.ready() == f"http://127.0.0.1:{port}"
            assert client.get("/health/ready").status_code == 200
        one.process.send_signal(signal.SIGTERM)
        assert one.wait() == 0


def test_sigterm_ends_a_server_that_is_still_loading(tmp_path) -> None:
    slow = SlowFolder(tmp_path / "slow")
    with serving(tmp_path, *SIMULATED, "--set", f"model.path={slow.path}") as one:
        port_of(one)
        one.process.send_signal(signal.SIGTERM)
        assert one.wait() == -signal.SIGTERM
