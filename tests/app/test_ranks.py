"""`octavo serve` as several processes that share one model, and what ends all of them."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest
import torch
from support.float_parity import CLEAR
from support.served import HANG_S, OCTAVO, Process, serving
from transformers import Qwen2Config, Qwen2ForCausalLM

from app.config import load_config
from app.problems import naming_the_key
from app.ranks import lead_ranks, place_of
from engine.backends import CudaSettings
from engine.backends.parallel.place import Place
from engine.backends.parallel.shards import Shard
from engine.backends.parallel.wanted import Wanted
from engine.errors import ConfigurationError
from tests.app.text.tiny_tokenizers import train, write_folder
from tests.engine.models.tiny_llama import CONFIG

NAME = "Tiny2.5-0.1B"
SETTINGS = {
    "engine.backend": "cpu",
    "engine.kv_memory": "4MiB",
    "engine.threads": 1,
    "model.dtype": "float32",
    "server.port": 0,
}
PROMPTS = [
    "The quick fox",
    "It is what it is, and",
    "def main():",
    "naïve café",
    "The end. " * 12,
    "日本語",
]


def write_model(path: Path, seed: int = 0) -> Path:
    """A model with biases and an odd vocabulary, in a folder that can be served."""
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=401,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
    )
    model = Qwen2ForCausalLM(config).eval().requires_grad_(False)
    for name, parameter in model.named_parameters():
        parameter.normal_(1.0 if "norm" in name else 0.0, 0.2)
    model.save_pretrained(path)
    saved = json.loads((path / "config.json").read_bytes())
    return write_folder(path, train("byte-level"), config=saved)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / NAME)


def options(path: Path, **more: Any) -> list[str]:
    changes = {key.replace("__", "."): value for key, value in more.items()}
    wanted = SETTINGS | {"model.path": path} | changes
    return [f"--set={key}={value}" for key, value in wanted.items()]


@contextlib.contextmanager
def two_ranks(
    directory: Path, path: Path, other: Path | None = None, **more: Any
) -> Iterator[tuple[Process, Process]]:
    """Rank 0 and rank 1, which have been started and nothing else. other: rank 1's model."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    more["engine__tensor_parallel"] = 2
    with (
        serving(directory, *options(path, **more), environment={**common, "RANK": "0"}) as first,
        serving(
            directory, *options(other or path, **more), environment={**common, "RANK": "1"}
        ) as second,
    ):
        yield first, second


# ── what is said ──────────────────────────────────────────────────────────────────────────────


def body(number: int, prompt: str) -> dict[str, Any]:
    """Greedy, or drawn with a seed."""
    drawn = {"temperature": 0.8, "seed": number} if number % 2 else {"temperature": 0}
    return {
        "model": NAME,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": 24,
        "ignore_eos": True,
        "logprobs": True,
        "top_logprobs": 2,
        "stream": True,
        **drawn,
    }


class Said(NamedTuple):
    """A token of a stream. margin: by how much the best was more likely than the second."""

    token: str
    logprob: float
    margin: float


def streamed(url: str, asked: dict[str, Any]) -> list[Said]:
    found = []
    with httpx2.stream("POST", url + "/v1/chat/completions", json=asked, timeout=HANG_S) as reply:
        assert reply.status_code == 200
        for line in reply.iter_lines():
            if not line.startswith("data: {"):
                continue
            for choice in json.loads(line.removeprefix("data: "))["choices"]:
                for said in (choice.get("logprobs") or {}).get("content") or ():
                    best, second = (top["logprob"] for top in said["top_logprobs"])
                    found.append(Said(said["token"], said["logprob"], best - second))
    return found


def all_at_once(url: str) -> list[list[Said]]:
    asked = [body(number, prompt) for number, prompt in enumerate(PROMPTS)]
    with ThreadPoolExecutor(len(asked)) as threads:
        return list(threads.map(lambda each: streamed(url, each), asked))


@pytest.mark.slow
def test_two_processes_say_what_one_says(folder: Path, tmp_path: Path):
    """Where tokens part, the two best of a greedy choice were closer than 1e-3."""
    with serving(tmp_path, *options(folder)) as one:
        expected = all_at_once(one.ready())
    with two_ranks(tmp_path, folder) as (first, second):
        found = all_at_once(first.ready())
        assert json.loads(first.told("ready to serve"))["ranks"] == 2
        assert second.url == ""
        second.process.send_signal(signal.SIGTERM)  # whoever is told to end, all do
        assert (first.wait(), second.wait()) == (0, 0)
    parted = 0
    for number, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        assert len(ours) == len(theirs) == 24
        for one, other in zip(ours, theirs, strict=True):
            if one.token != other.token:
                assert number % 2 or other.margin < CLEAR
                parted += 1
                break
            assert one.logprob == pytest.approx(other.logprob, abs=CLEAR)
    assert parted <= 1


# ── what ends them ────────────────────────────────────────────────────────────────────────────


def until_it_fails(url: str) -> int:
    """Ask again and again; the status of the first answer that is none, 599 if nobody answers."""
    asked = {"model": NAME, "prompt": "fox", "max_tokens": 200, "ignore_eos": True, "n": 8}
    try:
        while True:
            reply = httpx2.post(url + "/v1/completions", json=asked, timeout=HANG_S)
            if reply.status_code != 200:
                return reply.status_code
    except httpx2.HTTPError:
        return 599


@pytest.mark.slow
def test_a_killed_follower_ends_rank_0_which_names_it(folder: Path, tmp_path: Path):
    with two_ranks(tmp_path, folder) as (first, second):
        first.ready()
        second.process.kill()
        assert first.wait() == 1
        assert "Error: rank 1 " in "".join(first.lines)


@pytest.mark.slow
def test_a_follower_that_is_killed_within_a_step_fails_the_requests_and_ends_all(
    folder: Path, tmp_path: Path
):
    with two_ranks(tmp_path, folder) as (first, second), ThreadPoolExecutor() as threads:
        url = first.ready()
        status = threads.submit(until_it_fails, url)
        wait_for_tokens(url)
        second.process.kill()
        assert status.result(HANG_S) >= 500
        assert first.wait() == 1
        assert "Error: rank 1 " in "".join(first.lines)


def wait_for_tokens(url: str) -> None:
    while True:
        page = httpx2.get(url + "/metrics", timeout=HANG_S).text
        name = "octavo_generated_tokens_total"
        if any(line.startswith(name) and not line.endswith(" 0.0") for line in page.splitlines()):
            return


@pytest.mark.slow
@pytest.mark.parametrize("busy", [False, True])
def test_a_killed_leader_ends_its_follower(folder: Path, tmp_path: Path, busy: bool):
    with two_ranks(tmp_path, folder) as (first, second), ThreadPoolExecutor() as threads:
        url = first.ready()
        if busy:
            threads.submit(until_it_fails, url)
            wait_for_tokens(url)
        first.process.kill()
        assert second.wait() == 1
        assert "Error: " in "".join(second.lines)


@pytest.mark.slow
def test_a_follower_that_stands_still_is_waited_for_as_long_as_it_says(
    folder: Path, tmp_path: Path
):
    with two_ranks(tmp_path, folder, engine__rank_timeout_s=2) as (first, second):
        url = first.ready()
        second.process.send_signal(signal.SIGSTOP)
        assert until_it_fails(url) >= 500
        assert first.wait() == 1
        assert "Error: rank 1 does not answer" in "".join(first.lines)


@pytest.mark.slow
def test_ctrl_c_on_rank_0_ends_all(folder: Path, tmp_path: Path):
    with two_ranks(tmp_path, folder) as (first, second):
        first.ready()
        first.process.send_signal(signal.SIGINT)
        assert (first.wait(), second.wait()) == (0, 0)
        assert "rank 0 has ended" in "".join(second.lines)


@pytest.mark.slow
def test_ctrl_c_in_a_terminal_reaches_all_and_ends_all(folder: Path, tmp_path: Path):
    with two_ranks(tmp_path, folder) as (first, second):
        first.ready()
        for each in (second, first):
            each.process.send_signal(signal.SIGINT)
        assert (first.wait(), second.wait()) == (0, 0)


@pytest.mark.slow
def test_torchrun_starts_both_and_ctrl_c_ends_both(folder: Path, tmp_path: Path):
    torchrun = OCTAVO.with_name("torchrun")
    starting = [torchrun, "--standalone", "--nproc-per-node", "2", "--no-python", OCTAVO]
    shared = options(folder, engine__tensor_parallel=2)
    with serving(tmp_path, *shared, program=starting) as both:
        assert len(all_at_once(both.ready())) == len(PROMPTS)
        both.process.send_signal(signal.SIGINT)
        assert "rank 0 has ended, and so has this" in both.told("rank 0 has ended")
        both.told("Finished server process")
        both.wait()


@pytest.mark.slow
def test_a_follower_with_another_model_is_refused_before_anything_is_loaded(
    folder: Path, tmp_path: Path
):
    other = write_model(tmp_path / NAME)
    saved = json.loads((other / "config.json").read_bytes())
    (other / "config.json").write_text(json.dumps(saved | {"rms_norm_eps": 1e-3}))
    with two_ranks(tmp_path, folder, other) as (first, second):
        assert first.wait() == 2
        assert "Error: rank 1 differs from rank 0 in model" in "".join(first.lines)
        assert second.wait() == 1
        assert "rank 1 differs from rank 0 in model" in "".join(second.lines)


@pytest.mark.slow
def test_a_follower_with_other_weights_of_the_same_shape_is_refused(folder: Path, tmp_path: Path):
    other = write_model(tmp_path / NAME, seed=1)
    with two_ranks(tmp_path, folder, other) as (first, second):
        assert first.wait() == 2
        assert "Error: rank 1 differs from rank 0 in weights" in "".join(first.lines)
        assert second.wait() == 1


@pytest.mark.slow
def test_a_follower_without_the_model_ends_rank_0_with_its_words(folder: Path, tmp_path: Path):
    with two_ranks(tmp_path, folder, tmp_path / "nowhere.gguf") as (first, second):
        assert second.wait() == 2
        assert first.wait() == 1
        assert "rank 1 cannot go on" in "".join(first.lines)
        assert "nowhere.gguf" in "".join(first.lines)


# ── what is refused ───────────────────────────────────────────────────────────────────────────

TORCHRUN = {
    "RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
}
SHARED = ["engine.tensor_parallel=2", "model.dtype=float32"]


def test_torchruns_environment_says_which_process_this_is():
    assert place_of(load_config(overrides=SHARED), TORCHRUN) == Place(1, 2, 1, 2)
    assert place_of(load_config(), {}) == Place()
    assert place_of(load_config(), {"WORLD_SIZE": "1", "RANK": "0"}) == Place()


@pytest.mark.parametrize(
    ("overrides", "changes", "message"),
    [
        (SHARED, dict.fromkeys(TORCHRUN), "2 processes have to be started together: torchrun"),
        ([], {}, "engine.tensor_parallel: 1, but there are 2 processes"),
        (SHARED, {"WORLD_SIZE": "4"}, "engine.tensor_parallel: 2, but there are 4 processes"),
        (SHARED, {"RANK": None}, "RANK should be a number, as torchrun sets it; it is missing"),
        (SHARED, {"RANK": "one"}, "RANK should be a number, as torchrun sets it; it is 'one'"),
        (SHARED, {"RANK": "2"}, "RANK is 2, which is not one of WORLD_SIZE = 2"),
        (SHARED, {"MASTER_PORT": None}, "WORLD_SIZE is 2, but there is no MASTER_PORT"),
    ],
)
def test_an_environment_that_does_not_agree_is_refused(overrides, changes, message):
    environment = {key: value for key, value in (TORCHRUN | changes).items() if value is not None}
    with pytest.raises(ConfigurationError) as caught:
        place_of(load_config(overrides=overrides), environment)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.dtype=int8", "2 processes cannot share int8 weights; write model.dtype = float32"),
        ("engine.backend=simulated", "2 processes need a model that is computed"),
    ],
)
def test_what_several_processes_cannot_compute_is_refused(override: str, message: str):
    with pytest.raises(ConfigurationError, match=message):
        load_config(overrides=[*SHARED, override])


def test_a_model_that_cannot_be_dealt_is_refused_by_the_knob():
    with (
        pytest.raises(ConfigurationError, match=r"^engine.tensor_parallel: 4 attention heads"),
        naming_the_key("model.path"),
    ):
        Shard(CONFIG, 0, 3)


def test_rank_0_is_told_what_to_compute_on(monkeypatch, tmp_path: Path):
    """Whatever of a GPU is configured reaches who loads."""
    told: list[Any] = []
    monkeypatch.setattr("app.ranks.lead", lambda *parts: told.append(parts))
    for key, value in (TORCHRUN | {"RANK": "0"}).items():
        monkeypatch.setenv(key, value)
    shared = [*SHARED[:1], "engine.kv_memory=4MiB", "engine.kv_dtype=bfloat16"]
    config, cuda = load_config(overrides=shared), CudaSettings(graphs=False)
    lead_ranks(config, tmp_path, cuda)
    wanted = Wanted(tmp_path, "bfloat16", kv_memory_bytes=4 << 20)
    assert told == [(Place(0, 2, 1, 2), wanted, cuda, None)]
