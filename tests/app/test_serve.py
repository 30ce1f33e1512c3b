"""`octavo serve` as a process: it answers, drains, and says in one message what is wrong."""

import contextlib
import json
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest
from support.served import HANG_S, serving

SIMULATED = ["--set", "engine.backend=simulated", "--set", "server.port=0"]

ENDLESS = 5000
"""Tokens of a stream that at the pace of SLOW goes on for longer than any of this takes."""

SLOW = ["--set", "engine.simulated.base_s=0.05"]

PATIENT = ["--set", "server.shutdown_grace_s=1000"]


def test_it_answers_without_a_model_file_and_without_torch(tmp_path) -> None:
    with serving(tmp_path, *SIMULATED) as one:
        body = {"prompt": "x", "max_tokens": 5}
        reply = httpx2.post(one.ready() + "/v1/completions", json=body, timeout=HANG_S).json()
        assert reply["choices"][0]["text"] == "abcde"
        one.process.send_signal(signal.SIGTERM)
        assert one.wait() == 0
        request = next(json.loads(line) for line in one.lines if '"/v1/completions"' in line)
        assert request["completion_tokens"] == 5
    assert not list(tmp_path.iterdir()), "nothing was fetched"


def test_spans_of_the_last_requests_are_sent_before_it_ends(tmp_path) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp", reason="install the extra `otel`")
    from support.collector import attributes, collecting

    with collecting() as collector:
        given = ["tracing.enabled=true", f"tracing.endpoint={collector.url}"]
        options = [part for each in given for part in ("--set", each)]
        with serving(tmp_path, *SIMULATED, *options) as one:
            body = {"prompt": "x", "max_tokens": 5}
            reply = httpx2.post(one.ready() + "/v1/completions", json=body, timeout=HANG_S)
            one.process.send_signal(signal.SIGTERM)
            assert one.wait() == 0
        [span] = collector.spans
    assert attributes(span)["gen_ai.response.id"] == reply.json()["id"]
    assert collector.resource["service.name"] == "octavo"


class Client:
    """Reads a stream in the background; `said` are its lines so far that are not empty."""

    def __init__(self, url: str, max_tokens: int) -> None:
        self.said: list[str] = []
        self._begun = threading.Event()
        self._thread = threading.Thread(target=self._read, args=(url, max_tokens))
        self._thread.start()
        assert self._begun.wait(HANG_S)

    def _read(self, url: str, max_tokens: int) -> None:
        body = {"prompt": "x", "max_tokens": max_tokens, "stream": True}
        url += "/v1/completions"
        with (
            contextlib.suppress(httpx2.HTTPError),
            httpx2.stream("POST", url, json=body, timeout=HANG_S) as reply,
        ):
            for line in filter(None, reply.iter_lines()):
                self.said.append(line)
                self._begun.set()

    @property
    def reads(self) -> bool:
        return self._thread.is_alive()

    def end(self) -> list[str]:
        """Everything it read, to the end of the stream."""
        self._thread.join(HANG_S)
        assert not self.reads
        return self.said


@pytest.mark.parametrize(("grace", "tokens"), [("1000", 20), ("0.2", ENDLESS)])
def test_sigterm_lets_a_stream_end_within_the_grace_period_and_no_longer(
    tmp_path, grace: str, tokens: int
) -> None:
    with serving(tmp_path, *SIMULATED, *SLOW, "--set", f"server.shutdown_grace_s={grace}") as one:
        client = Client(one.ready(), tokens)
        one.process.send_signal(signal.SIGTERM)
        assert one.wait() == 0
        said = client.end()
    assert said[-1] == "data: [DONE]"
    if tokens < ENDLESS:
        assert '"finish_reason":"length"' in said[-2]
        assert not any(line.startswith("event: error") for line in said)
    else:
        assert said[-3] == "event: error"
        assert "shutting_down" in said[-2]


def test_a_second_signal_cuts(tmp_path) -> None:
    with serving(tmp_path, *SIMULATED, *SLOW, *PATIENT) as one:
        client = Client(one.ready(), ENDLESS)
        one.process.send_signal(signal.SIGINT)
        one.process.send_signal(signal.SIGTERM)
        assert one.wait() == 0
        assert "shutting_down" in client.end()[-2]
        logged = [json.loads(line) for line in one.lines]
    assert not [line for line in logged if line["level"] == "error" or "exception" in line]
    assert len([line for line in logged if line["event"].startswith("cutting requests")]) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="looks for the process that vets in /proc")
def test_who_waits_for_a_grammar_is_told_at_once_that_the_server_ends(tmp_path) -> None:
    """What it would come to with its grammar is the same, however long that takes."""
    doubling = "".join(f"A{i}: A{i + 1} A{i + 1}\n" for i in range(60))
    grammar = {"grammar": f'start: A0\n{doubling}A60: "x"'}
    body = {"prompt": "x", "structured_outputs": grammar}
    patient = ["--set", "structured.timeout_s=1000"]
    with (
        serving(tmp_path, *SIMULATED, *PATIENT, *patient) as one,
        ThreadPoolExecutor() as clients,
    ):
        url = one.ready() + "/v1/completions"
        asked = clients.submit(httpx2.post, url, json=body, timeout=HANG_S)
        tasks = Path(f"/proc/{one.process.pid}/task")
        while not any(children.read_text() for children in tasks.glob("*/children")):
            assert not asked.done()
        one.process.send_signal(signal.SIGTERM)
        reply = asked.result()
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "shutting_down")
        assert one.wait() == 0
        assert not [line for line in one.lines if "Traceback" in line]


def test_the_first_signal_says_who_is_waited_for_and_how_long(tmp_path) -> None:
    with serving(tmp_path, *SIMULATED, *SLOW, *PATIENT) as one:
        client = Client(one.ready(), ENDLESS)
        one.process.send_signal(signal.SIGTERM)
        assert "in flight, 1, may go on for 1000 s" in one.told("draining")
        one.process.send_signal(signal.SIGTERM)
        assert one.wait() == 0
        client.end()


def test_a_server_that_drains_refuses_connections_and_closes_idle_ones(tmp_path) -> None:
    with serving(tmp_path, *SIMULATED, *SLOW, *PATIENT) as one:
        address = ("127.0.0.1", int(one.ready().rsplit(":", 1)[1]))
        with socket.create_connection(address, timeout=HANG_S) as idle:
            idle.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
            assert idle.recv(1000).startswith(b"HTTP/1.1 200 OK")
            client = Client(one.url, ENDLESS)
            one.process.send_signal(signal.SIGTERM)
            assert idle.recv(1000) == b""
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(address, timeout=HANG_S)
            assert client.reads, "the stream goes on meanwhile"
        one.process.send_signal(signal.SIGTERM)
        assert one.wait() == 0
        client.end()


def test_a_client_that_never_reads_does_not_outlast_the_grace_period(tmp_path) -> None:
    options = ["--set", "server.shutdown_grace_s=0.2", "--set", "engine.simulated.real_time=false"]
    with serving(tmp_path, *SIMULATED, *options) as one, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        port = int(one.ready().rsplit(":", 1)[1])
        client.connect(("127.0.0.1", port))
        body = b'{"prompt": "x", "max_tokens": 8000, "stream": true, "logprobs": 5}'
        head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n"
        client.sendall(head % len(body) + body)
        client.recv(16)
        one.process.send_signal(signal.SIGTERM)
        assert one.wait() == 0
        logged = [json.loads(line) for line in one.lines]
    assert not [line for line in logged if line["level"] == "error"]


def test_one_line_says_what_is_served(tmp_path) -> None:
    with serving(tmp_path, *SIMULATED, "--set", "engine.depth=1") as one:
        one.ready()
        one.process.send_signal(signal.SIGTERM)
        assert one.wait() == 0
        (line,) = [json.loads(line) for line in one.lines if "ready to serve" in line]
    assert (line["kv_blocks"], line["kv_tokens"]) == (4096, 65536)
    assert (line["backend"], line["policy"], line["depth"]) == ("simulated", "fcfs", 1)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--set", "engine.max_row=8"], "engine.max_rows"),
        (["--set", "server.port=70000"], "server.port"),
        (["--set", "scheduler.policy=fcsf"], "fcfs"),
        (["--set", "engine.max_step_tokens=0"], "engine.max_step_tokens"),
        (["--set", "engine.simulated.total_blocks=4"], "engine.simulated.total_blocks"),
        (["--set", "model.max_model_len=999999"], "model.max_model_len"),
        (["--config", "nowhere.yaml"], "nowhere.yaml"),
        (["--set", "engine.backend=cpu", "--set", "model.path=no.gguf"], "model.path: "),
        (["--set", "engine.backend=cpu", "--set", "model.path=text.gguf"], "model.path: text.gguf"),
        (["--set", "model.path=folder"], "model.path: folder"),
        (["--set", "server.host=192.0.2.1"], "server.host: 192.0.2.1"),
        (["--set", "server.host=no.such.host.invalid"], "server.host: no.such"),
    ],
)
def test_what_cannot_work_is_one_message_and_exit_code_2(tmp_path, arguments, says) -> None:
    (tmp_path / "text.gguf").write_text("this is no model")
    (tmp_path / "folder").mkdir()
    with serving(tmp_path, *SIMULATED, *arguments) as one:
        assert one.wait() == 2
        message = "".join(line for line in one.lines if '"loading: ' not in line)
        assert says in message
        assert "Traceback" not in message
        assert message.startswith("Error: ")


def test_a_port_in_use_is_told_in_one_line_before_a_model_is_loaded(tmp_path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        options = ["--set", f"server.port={port}", "--set", "model.path=nowhere.gguf"]
        with serving(tmp_path, *options) as one:
            assert one.wait() == 2
            (message,) = one.lines
    assert message.startswith(f"Error: server.port: {port} on 127.0.0.1 cannot be taken: address")


def test_a_simulated_house_never_imports_torch() -> None:
    code = (
        "import sys; from rich.console import Console; from app.compose import compose;"
        "from app.config import Config, load_config;"
        "compose(load_config(None, {}, ['engine.backend=simulated']), Console());"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_sighup_reads_the_configuration_again(tmp_path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("scheduler: {policy: fcfs}", encoding="utf-8")
    with serving(tmp_path, *SIMULATED) as one:
        url = one.ready()

        def told(event: str) -> dict:
            return json.loads(one.told(f'"{event}"'))

        file.write_text("scheduler: {policy: sloo}", encoding="utf-8")
        one.process.send_signal(signal.SIGHUP)
        assert "did you mean slo?" in told("configuration not reloaded")["why"][0]
        file.write_text("scheduler: {policy: slo}", encoding="utf-8")
        one.process.send_signal(signal.SIGHUP)
        swapped = told("policy swapped")
        assert (swapped["by"], swapped["old"], swapped["new"]) == ("SIGHUP", "fcfs", "slo")
        assert httpx2.get(url + "/health", timeout=HANG_S).status_code == 200
        one.process.send_signal(signal.SIGTERM)
        assert one.wait() == 0
