"""Servers on this machine, and `vllm bench serve` against them."""

from __future__ import annotations

import json
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from loadtest.peers.processes import Command, arguments, complaint, program, run, with_environment
from loadtest.peers.work import PeerFailed

SERVED_NAME: Final = "model"
_START_S: Final = 900.0
_BENCH_S: Final = 900.0
_MOST_FAILED: Final = 0.2


@dataclass(frozen=True, slots=True)
class Mix:
    """`requests` of `prompt` random tokens that generate `output`, `concurrent` at a time."""

    prompt: int = 128
    output: int = 64
    concurrent: int = 32
    requests: int = 64


@dataclass(frozen=True, slots=True)
class Served:
    """Generated tokens a second of all clients together; medians of milliseconds to the first token
    and of each token after it; how many requests were not answered, whose tokens do not count."""

    output_tok_s: float
    ttft_ms: float
    tpot_ms: float
    failed: int = 0


class Server:
    """A server that answers `/health` with 200. Its process ends with `close`.

    Raises PeerFailed if it ends before, or is not ready within a quarter of an hour.
    """

    def __init__(
        self, command: Command, port: int, *, environment: Mapping[str, str], log: Path
    ) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._name, self._log = program(command), log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as said:
            self._process = subprocess.Popen(
                arguments(command),
                env=with_environment(environment),
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
            )
        try:
            self._wait()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(timeout=40)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _wait(self) -> None:
        deadline = time.monotonic() + _START_S
        while not self._healthy():
            if self._process.poll() is not None:
                said = complaint(self._log.read_text(errors="replace"))
                raise PeerFailed(f"{self._name} does not serve: {said}")
            if time.monotonic() > deadline:
                raise PeerFailed(f"{self._name} is not ready after {_START_S:,.0f} s")
            time.sleep(0.5)

    def _healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as reply:
                return bool(reply.status == 200)
        except (urllib.error.URLError, OSError):
            return False


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def measure_served(
    client: Command, environment: Mapping[str, str], url: str, mix: Mix, seed: int
) -> Served:
    """One run of `vllm bench serve`. Raises PeerFailed."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        options: dict[str, object] = {
            "--backend": "openai",
            "--base-url": url,
            "--endpoint": "/v1/completions",
            "--dataset-name": "random",
            "--random-input-len": mix.prompt,
            "--random-output-len": mix.output,
            "--max-concurrency": mix.concurrent,
            "--num-prompts": mix.requests,
            "--seed": seed,
            "--temperature": 0,
            "--result-filename": result,
        }
        chosen = [part for option in options.items() for part in option]
        flags = ["--ignore-eos", "--save-result", "--disable-tqdm"]
        run([*client, *chosen, *flags], timeout=_BENCH_S, environment=environment)
        return parse(json.loads(result.read_text()), mix)


def parse(result: Mapping[str, Any], mix: Mix) -> Served:
    """What `vllm bench serve` saved.

    Raises PeerFailed if more than a fifth of the requests failed, or tokens of the others did.
    """
    completed, generated = result["completed"], result["total_output_tokens"]
    failed = mix.requests - completed
    if failed > mix.requests * _MOST_FAILED:
        raise PeerFailed(f"{failed} of {mix.requests} requests failed")
    if generated != completed * mix.output:
        raise PeerFailed(f"{generated} tokens came, {completed * mix.output} were asked for")
    latencies = result["median_ttft_ms"], result["median_tpot_ms"]
    return Served(result["output_throughput"], *latencies, failed)
