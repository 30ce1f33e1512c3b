"""A real server, recorded on the real clock, is decided again to the byte; nothing else is told."""

from __future__ import annotations

import json
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml
from click.testing import CliRunner
from support.float_parity import MODEL
from support.served import HANG_S, Process, serving

from app.recording.files import PATTERN
from loadtest.commands.replay import replay
from loadtest.recordings.files import RecordingError, find_recording, is_recording
from loadtest.recordings.verification import verify

TEXT = "Zebra crossing at midnight"
WORDS = ("Zebra", "crossing", "midnight", "acme-tenant", "umbrella-tenant", "gold-class", "key-of")
CONFIG: dict[str, Any] = {
    "server": {"port": 0, "admin_key": "admin"},
    "engine": {
        "backend": "simulated",
        "max_rows": 6,
        "simulated": {"total_blocks": 60, "host_blocks": 20, "base_s": 0.001},
        "offload_memory": 0,
        "depth": 1,
        "speculation": {"method": "ngram"},
    },
    "model": {"max_model_len": 512},
    "scheduler": {"policy": "fair-share"},
    "classes": {"gold-class": {"ttft_s": 0.5, "max_running": 3}},
    "tenants": {
        "acme-tenant": {"keys": ["key-of-acme"], "weight": 2.0},
        "umbrella-tenant": {"keys": ["key-of-umbrella"], "classes": ["gold-class"]},
    },
}


def written(tmp_path: Path, config: dict[str, Any]) -> list[str]:
    """A configuration file that records, as options of `octavo serve`."""
    records = {"directory": str(tmp_path / "recordings")}
    path = tmp_path / "recorded.yaml"
    path.write_text(yaml.safe_dump({**config, "record": records}))
    return ["--config", str(path)]


def ask(url: str, number: int, text: str = TEXT) -> int:
    """One request of many kinds; the client of some leaves early. Its status."""
    body: dict[str, Any] = {
        "prompt": f"{text} {number % 7} " * (1 + number % 4),
        "max_tokens": 5 + 3 * number % 40,
        "stream": True,
        "ignore_eos": True,
    }
    if number % 5 == 0:
        body |= {"n": 2}
    if number % 6 == 1:
        body |= {"stop": "jk"}
    who = ("key-of-acme", "key-of-umbrella")[number % 2]
    headers = {"authorization": f"Bearer {who}"}
    url += "/v1/completions"
    with httpx2.stream("POST", url, json=body, headers=headers, timeout=HANG_S) as reply:
        for place, _ in enumerate(reply.iter_lines()):
            if number % 8 == 3 and place > 6:
                break
        return reply.status_code


def swap(url: str, policy: str) -> int:
    headers = {"authorization": "Bearer admin"}
    body = {"policy": policy}
    return httpx2.post(
        url + "/admin/policy", json=body, headers=headers, timeout=HANG_S
    ).status_code


def visit(one: Process, rounds: int, text: str = TEXT) -> None:
    """Some traffic, another policy after each round, and a look at the page's numbers."""
    url = one.ready()
    with ThreadPoolExecutor(12) as clients:
        for number, policy in zip(range(rounds), ("slo", "prefix-first", "fcfs"), strict=False):
            asked = [clients.submit(ask, url, 20 * number + i, text) for i in range(20)]
            assert swap(url, policy) == 200
            headers = {"authorization": "Bearer admin"}
            assert httpx2.get(f"{url}/admin/requests", headers=headers, timeout=HANG_S).is_success
            assert {each.result() for each in asked} == {200}


def plain(directory: Path) -> bytes:
    """All rows of the recordings of a directory."""
    recording = find_recording(directory)
    return json.dumps([recording.header, list(recording.rows())]).encode()


def hashed(directory: Path) -> bool:
    """Whether a recording has been begun there, and has a hash of what was decided."""
    try:
        return any("digest" in row for row in find_recording(directory).rows())
    except RecordingError:
        return False


def test_a_recorded_server_is_decided_again_to_the_byte(tmp_path) -> None:
    with serving(tmp_path, *written(tmp_path, CONFIG)) as one:
        visit(one, 3)
        one.process.send_signal(signal.SIGTERM)
        assert one.wait() == 0
    directory = tmp_path / "recordings"
    verdict = verify(find_recording(directory))
    assert verdict.exact
    assert verdict.diverged == ""
    assert verdict.end == "closed"
    assert verdict.verified == verdict.turns
    assert verdict.requests == 60
    content = plain(directory)
    assert not any(word.encode() in content for word in WORDS)
    result = CliRunner().invoke(replay, [str(directory), "--json"])
    assert result.exit_code == 0
    assert json.loads(result.stdout)["exact"] is True


def test_what_was_recorded_before_a_kill_is_decided_again(tmp_path) -> None:
    with serving(tmp_path, *written(tmp_path, CONFIG)) as one:
        visit(one, 1)
        directory = tmp_path / "recordings"
        written_by = time.monotonic() + HANG_S
        while not hashed(directory):
            assert time.monotonic() < written_by, "nothing is written"
            time.sleep(0.02)
        one.process.kill()
        one.wait()
    [path] = directory.glob(PATTERN)
    assert is_recording(path)
    verdict = verify(find_recording(path))
    assert verdict.exact
    assert verdict.end == "cut"


def test_a_recording_that_was_changed_is_told_from_what_was_decided(tmp_path) -> None:
    with serving(tmp_path, *written(tmp_path, CONFIG)) as one:
        visit(one, 1)
        one.process.send_signal(signal.SIGTERM)
        assert one.wait() == 0
    recording = find_recording(tmp_path / "recordings")
    recording.header["engine"]["limits"]["rows"] += 1
    verdict = verify(recording)
    assert not verdict.exact
    assert verdict.diverged


ODD: list[dict[str, Any]] = [
    {"guided_regex": "[a-z]{3,9} [0-9]{2,4}"},
    {"guided_json": {"type": "object", "properties": {"name": {"type": "string"}}}},
    {"n": 3, "temperature": 1.0, "seed": 3},
    {"use_beam_search": True, "n": 2, "best_of": 3, "temperature": 0},
    {"echo": True, "logprobs": 2},
    {"stop": ["\n", "."], "temperature": 0},
]
"""Of everything that the engine is told more of than a length."""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(not MODEL.exists(), reason=f"{MODEL.name} is not in models/")
@pytest.mark.parametrize("depth", [0, 1])
def test_the_real_model_is_decided_again_to_the_byte(tmp_path, depth: int) -> None:
    engine = {**CONFIG["engine"], "backend": "cpu", "depth": depth, "kv_memory": "8MiB"}
    del engine["simulated"]
    model = {"path": str(MODEL), "directory": str(MODEL.parent), "max_model_len": 512}
    config = {**CONFIG, "engine": engine, "model": model}
    with serving(tmp_path, *written(tmp_path, config)) as one:
        url = one.ready()
        headers = {"authorization": "Bearer key-of-acme"}
        with ThreadPoolExecutor(6) as clients:
            odd = [
                clients.submit(
                    httpx2.post,
                    url + "/v1/completions",
                    json={"prompt": f"{TEXT} {number}: a b c a b c a b", "max_tokens": 40, **each},
                    headers=headers,
                    timeout=HANG_S,
                )
                for number, each in enumerate(2 * ODD)
            ]
            visit(one, 2)
            assert {each.result().status_code for each in odd} == {200}
        one.process.send_signal(signal.SIGTERM)
        assert one.wait() == 0
    verdict = verify(find_recording(tmp_path / "recordings"))
    assert verdict.diverged == ""
    assert verdict.exact
    assert verdict.requests >= 40 + len(ODD)
    assert not any(word.encode() in plain(tmp_path / "recordings") for word in WORDS)
