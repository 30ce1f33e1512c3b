"""The model's figures have the keys that scripts read, and add up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result
from rich.console import Console
from transformers import Qwen2Config, Qwen2ForCausalLM

from app.cli import main
from app.config import Config, load_config
from engine.capacity import Roofline
from engine.outputs import Counters, Stats
from loadtest import clients_bench, model_bench
from loadtest.clients_bench import StepWatch, measure_clients
from loadtest.machine import Unmeasured
from loadtest.model_bench import PARTS, TICKS, Bench, Measured, Mix, measure_model, median, shares
from tests.app.text.tiny_tokenizers import train, write_folder

TINY = Mix(prompt=20, output=5, at=(1, 3))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=400,
            hidden_size=64,
            intermediate_size=96,
            num_hidden_layers=1,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=256,
        )
    )
    folder = tmp_path_factory.mktemp("tiny") / "tiny"
    model.save_pretrained(folder)
    saved = json.loads((folder / "config.json").read_bytes())
    return write_folder(folder, train("byte-level"), config=saved)


@pytest.fixture
def options(folder: Path, tmp_path: Path) -> list[str]:
    return [
        f"model.path={folder}",
        f"model.directory={tmp_path}",
        "engine.kv_memory=16MiB",
        "engine.threads=1",
    ]


@pytest.fixture
def config(options: list[str]) -> Config:
    return load_config(None, {}, options)


@pytest.fixture(autouse=True)
def known_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_bench, "measure_roofline", lambda: Roofline(1e10, 1e12))


def bench(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["bench", *arguments], catch_exceptions=False)


def test_json_has_the_keys_that_scripts_read(options: list[str]) -> None:
    settings = [word for option in options for word in ("--set", option)]
    result = bench("--only", "model", "--rounds", "1", "--json", *settings)
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    assert set(report) == {
        *("prefill_tok_s", "decode_tok_s", "step_ms", "long", "roofline", "share"),
        *("model", "dtype", "kv_dtype", "threads", "native"),
        *("rounds", "steps", "lacks", "versions", "cpu"),
    }
    assert set(report["decode_tok_s"]) == set(report["step_ms"]) == {"1", "8", "32", "64"}
    assert set(report["long"]) == {"prefill_tok_s", "decode_tok_s", "step_ms"}
    assert set(report["long"]["decode_tok_s"]) == {"1", "8", "16"}
    assert report["roofline"]["read_gb_s"] == pytest.approx(10)
    assert report["roofline"]["int8_gops"] == pytest.approx(1000)
    assert set(report["roofline"]["reached"]) == {"prefill", "decode", "long"}
    assert set(report["share"]) == set(PARTS)
    assert (report["model"], report["dtype"], report["kv_dtype"]) == ("tiny", "int8", "int8")
    assert (report["threads"], report["lacks"]) == (1, {})
    rates = [report["prefill_tok_s"], *report["decode_tok_s"].values()]
    assert all(rate > 0 for rate in rates)


def test_the_parts_of_a_step_are_all_of_it(config: Config) -> None:
    bench = Bench(config, Console(quiet=True))
    if bench.core.model.native is None:
        pytest.skip("there is no native library")
    measured = bench.measure(TINY, lambda: None)
    bench.close()
    assert all(part is not None for part in measured.parts.values())
    laps = {"computing": 5, "products": 2, "attention": 1, "sampling": 3, "handover": 1}
    assert bench._parts(10, laps) == {
        "products": 2,
        "attention": 1,
        "glue": 2,
        "sampling": 3,
        "scheduler": 1,
        "handover": 1,
    }


def test_what_torch_computes_is_not_split_up(options: list[str]) -> None:
    options = [*options, "model.dtype=float32"]
    ticks: list[None] = []
    config = load_config(None, {}, options)
    report = measure_model(config, Console(quiet=True), 1, lambda: ticks.append(None))
    assert [name for name in PARTS if report["share"][name] is None] == [
        *("products", "attention", "glue")
    ]
    assert report["native"] is None
    assert report["roofline"]["reached"] is None
    assert len(ticks) == TICKS


def test_every_step_that_counts_decodes_all_rows_from_the_cache(config: Config) -> None:
    bench = Bench(config, Console(quiet=True))
    shapes: list[tuple[int, int]] = []
    bench.core.engine.emit = lambda outputs, look: shapes.append(  # type: ignore[assignment]
        (look().step_rows, look().step_tokens)
    )
    measured = bench.measure(TINY, lambda: None)
    counters = bench.core.engine.scheduler.counters
    bench.close()
    assert counters.cached_tokens == (1 + 3) * 16, "whole blocks of the prompts"
    assert shapes.count((3, 3)) == TINY.output
    assert set(measured.decode) == set(measured.step) == {1, 3}


def test_a_mix_shrinks_to_what_context_and_pool_hold(options: list[str]) -> None:
    config = load_config(None, {}, [*options, "engine.kv_memory=96KiB"])
    bench = Bench(config, Console(quiet=True))
    blocks = bench.core.model.backend.total_blocks
    fitting = bench.fitting(Mix(prompt=2000, output=6, at=(1, 8, 64)))
    assert fitting.prompt + fitting.output + 1 == bench.core.max_model_len == 256
    assert max(fitting.at) * 256 // 16 <= blocks < 64 * 256 // 16
    with pytest.raises(Unmeasured, match="256 tokens"):
        bench.fitting(Mix(prompt=1, output=256, at=(1,)))
    bench.close()


def test_medians_are_taken_part_by_part() -> None:
    def measured(value: float) -> Measured:
        parts = {name: value if name != "glue" else None for name in PARTS}
        return Measured(value, {1: 2 * value}, {1: 3 * value}, parts)

    found = median([measured(1), measured(9), measured(2)])
    assert (found.prefill, found.decode, found.step) == (2, {1: 4}, {1: 6})
    assert (found.parts["products"], found.parts["glue"]) == (2, None)
    assert shares(found.parts, 4)["sampling"] == 0.5


def test_what_is_lacking_is_said_and_the_rest_is_measured(tmp_path: Path) -> None:
    nowhere = tmp_path / "no.gguf"
    parts = ("--only", "model", "--only", "allocation")
    result = bench(*parts, "--json", "--set", f"model.path={nowhere}")
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    assert set(report["lacks"]) == {"model"}
    assert str(nowhere) in report["lacks"]["model"]
    assert "model is not measured" in result.stderr
    assert report["allocation"]


# ── beside clients ────────────────────────────────────────────────────────────────────────────


def test_a_server_is_measured_with_a_client_and_without() -> None:
    """One client is one row, in however many steps it comes."""
    ticks: list[None] = []
    config = load_config(None, {}, ["engine.backend=simulated"])
    steps = measure_clients(config, 1, clients=1, tick=lambda: ticks.append(None))
    assert steps.alone > 0
    assert steps.ratio == steps.beside / steps.alone
    assert len(ticks) == 2


def test_a_server_that_cannot_start_is_said() -> None:
    config = load_config(None, {}, ["engine.backend=cpu", "model.path=/nowhere.gguf"])
    with pytest.raises(Unmeasured, match="the server ended"):
        measure_clients(config, 1, clients=1)


def test_only_steps_of_all_rows_count_until_all_requests_have_ended() -> None:
    watch = StepWatch()
    watch((), _stats(steps=1, finished=7))
    watch.expect(2)
    watch((), _stats(steps=2, rows=1, tokens=1, seconds=1, finished=7))
    watch((), _stats(steps=3, rows=2, tokens=9, seconds=2, finished=7))
    watch((), _stats(steps=4, rows=2, tokens=2, seconds=3, finished=7))
    watch((), _stats(steps=4, rows=2, tokens=2, seconds=3, finished=7))
    watch((), _stats(steps=5, rows=2, tokens=2, seconds=4, finished=8))
    assert not watch.done.is_set()
    watch((), _stats(steps=6, rows=1, tokens=1, seconds=5, finished=8, cancelled=1))
    assert watch.done.is_set()
    assert watch.seconds == [3, 4]


def test_all_clients_have_a_row_in_each_step() -> None:
    config = clients_bench._with_room(load_config(None, {}), 300)
    assert config.engine.max_rows == 300
    assert config.engine.max_step_tokens >= 300
    assert config.limits.max_open_requests >= 300


def _stats(
    *, steps: int, rows: int = 0, tokens: int = 0, seconds: float = 0, **ended: int
) -> Stats:
    counters = Counters(steps=steps, **ended)
    return Stats(step_rows=rows, step_tokens=tokens, step_seconds=seconds, counters=counters)
