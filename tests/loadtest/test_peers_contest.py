"""Rounds are interleaved, engines that fail are out, and processes of their own are driven."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from loadtest.peers import contest as contest_module
from loadtest.peers.contest import Contest
from loadtest.peers.processes import Command
from loadtest.peers.results import Entrant, Results
from loadtest.peers.roster import Engine
from loadtest.peers.servers import Mix, Served, Server
from loadtest.peers.work import PeerFailed, Times, Work
from loadtest.peers.worker import Worker

SMALL, LARGE = Work(8, 4, 1), Work(8, 4, 2)


class Scripted:
    """An engine that notes what it is asked, and fails at a work if told to."""

    def __init__(self, name: str, said: list[str], fails_at: str = "") -> None:
        self._name, self._said, self._fails_at = name, said, fails_at

    def measure(self, work: Work, seed: int) -> Times:
        self._said.append(f"{self._name} {work.name} {seed}")
        if work.name == self._fails_at:
            raise PeerFailed("out of paper")
        return Times(1.0, 2.0)

    def close(self) -> None:
        self._said.append(f"{self._name} closed")


def contest(engines: dict[str, Engine]) -> tuple[Contest, Results, list[str]]:
    """A contest of these, its results, and what it tells, ticks and saves."""
    results = Results("tiny.gguf", {})
    for name in engines:
        results.enter(name, Entrant("", "1"))
    told: list[str] = []
    made = Contest(
        engines, results, told.append, lambda: told.append("tick"), lambda: told.append("save")
    )
    return made, results, told


def test_everybody_does_a_work_before_anybody_does_the_next_another_one_first_each_round() -> None:
    said: list[str] = []
    engines = {
        name: Engine(name, "", "1", partial(Scripted, name, said)) for name in ("here", "there")
    }
    made, results, told = contest(engines)
    made.direct([SMALL, LARGE], first=4, rounds=2)
    assert said == [
        *("here 8x1 4", "there 8x1 4", "here 8x2 4", "there 8x2 4"),
        *("there 8x1 5", "here 8x1 5", "there 8x2 5", "here 8x2 5"),
        *("there closed", "here closed"),
    ]
    assert results.direct["there"] == {
        "8x1": [Times(1.0, 2.0)] * 2,
        "8x2": results.direct["here"]["8x2"],
    }
    assert (told.count("tick"), told.count("save")) == (8, 4)


def test_an_engine_that_cannot_be_had_or_fails_is_out_and_the_others_go_on() -> None:
    said: list[str] = []

    def refuse() -> Scripted:
        raise PeerFailed("no such package")

    made, results, _ = contest(
        {
            "absent": Engine("absent", "", "1", refuse),
            "weak": Engine("weak", "", "1", partial(Scripted, "weak", said, "8x1")),
            "sound": Engine("sound", "", "1", partial(Scripted, "sound", said)),
        }
    )
    made.direct([SMALL, LARGE], first=0, rounds=1)
    assert said.count("weak closed") >= 1
    assert "weak 8x2 0" not in said
    assert set(results.direct["sound"]) == {"8x1", "8x2"}
    failures = {name: entrant.failure for name, entrant in results.entrants.items()}
    assert failures == {"absent": "no such package", "weak": "out of paper", "sound": None}


class Healthy(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def health() -> Iterator[int]:
    """A port that answers every GET with 200."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Healthy) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def test_over_http_only_engines_with_a_server_are_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, health: int
) -> None:
    asked, started = [], []

    def measure(
        client: Command, environment: dict[str, str], url: str, mix: Mix, seed: int
    ) -> Served:
        asked.append((client, url, seed))
        return Served(10.0, 1.0, 1.0)

    def serve(port: int) -> Server:
        command = [sys.executable, "-c", "import signal; signal.pause()"]
        started.append(Server(command, health, environment={}, log=tmp_path / "log"))
        return started[0]

    monkeypatch.setattr(contest_module, "measure_served", measure)
    said: list[str] = []
    made, results, _ = contest(
        {
            "mute": Engine("mute", "", "1", partial(Scripted, "mute", said)),
            "open": Engine("open", "", "1", partial(Scripted, "open", said), serve),
        }
    )
    made.served(["client"], {}, Mix(), first=1, rounds=2)
    assert results.served == {"open": [Served(10.0, 1.0, 1.0)] * 2}
    assert asked == [(["client"], f"http://127.0.0.1:{health}", number) for number in (1, 2)]
    assert started[0]._process.poll() is not None


def test_a_server_that_ends_before_it_serves_is_told_with_its_last_words(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "raise SystemExit('error: the port is taken')"]
    with pytest.raises(PeerFailed, match="does not serve: error: the port is taken"):
        Server(command, 9, environment={}, log=tmp_path / "log")


# ── a process of its own ──────────────────────────────────────────────────────────────────────

DRIVER = """
def load(settings):
    print("noise on stdout")
    def generate(prompts, output):
        assert all(len(prompt) in (8, 32) for prompt in prompts)
        if output == settings["fails_at"]:
            raise RuntimeError("error: out of paper")
        with open(settings["said"], "a") as file:
            print(len(prompts), output, file=file)
    return 100, generate
"""


def worker(tmp_path: Path, fails_at: int) -> Worker:
    (tmp_path / "paper_driver.py").write_text(DRIVER)
    return Worker(
        sys.executable,
        "paper_driver",
        {"fails_at": fails_at, "said": str(tmp_path / "said")},
        environment={"PYTHONPATH": str(tmp_path)},
        log=tmp_path / "logs" / "paper.log",
    )


def test_a_driver_answers_in_its_own_process_whatever_it_prints(tmp_path: Path) -> None:
    driven = worker(tmp_path, fails_at=-1)
    try:
        assert driven.vocab == 100
        driven._generate(SMALL.prompts(100, seed=0), 4)
    finally:
        driven.close()
    assert (tmp_path / "said").read_text() == "2 4\n1 4\n"
    assert "noise on stdout" in (tmp_path / "logs" / "paper.log").read_text()


def test_a_driver_that_dies_is_told_with_its_last_words(tmp_path: Path) -> None:
    driven = worker(tmp_path, fails_at=1)
    try:
        with pytest.raises(PeerFailed, match=r"paper_driver has ended: .*out of paper"):
            driven.measure(SMALL, seed=0)
    finally:
        driven.close()


def test_a_driver_that_does_not_load_is_told_too(tmp_path: Path) -> None:
    with pytest.raises(PeerFailed, match=r"paper_driver has ended: .*out of paper"):
        worker(tmp_path, fails_at=4)
