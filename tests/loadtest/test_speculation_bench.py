"""What guesses bring is measured on prompts that are there, and on those that somebody names."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from app import compose
from app.cli import main
from app.config import load_config
from loadtest import speculation_bench
from loadtest.speculation_bench import (
    MOST_GIVEN,
    Bench,
    measure_speculation,
    own_prompts,
    read_prompts,
    table,
    ticks,
)

SIMULATED = ("engine.backend=simulated", "engine.simulated.real_time=false")


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short answers, and steps that are thought to take what they would, not what they take."""
    monkeypatch.setattr(speculation_bench, "MOST_TOKENS", 60)
    monkeypatch.setattr(compose, "FittedCost", lambda cost: cost)


def test_each_kind_of_prompt_has_gains_at_each_temperature() -> None:
    """The simulated backend says the alphabet over and over, so that guesses come true."""
    happened: list[int] = []
    given = {"given": ["a", "b"]}
    config = load_config(None, {}, SIMULATED)
    gains = measure_speculation(config, Console(stderr=True), given, 1, lambda: happened.append(1))
    assert len(happened) == ticks(given)
    assert set(gains) == {*own_prompts(), "given"}
    for by_temperature in gains.values():
        for gain in by_temperature.values():
            assert gain.parted == 0
            assert gain.per_step > 1
            assert 0 < gain.accepted <= 1
            assert gain.none > 0
            assert gain.guessed > 0
    assert table(gains, "ngram").row_count == 2 * len(gains)


def test_it_guesses_only_in_the_turns_in_which_it_should() -> None:
    bench = Bench(load_config(None, {}, SIMULATED), Console(stderr=True))
    counters = bench.core.engine.scheduler.counters
    alone = bench.answer([1, 2, 3], 0.0, guessing=False)
    assert counters.drafts == 0
    assert bench.answer([1, 2, 3], 0.0, guessing=True).tokens == alone.tokens
    assert counters.drafts > 0
    bench.close()


def test_prompts_are_read_from_files_as_they_are_published(tmp_path: Path) -> None:
    plain, packed = tmp_path / "a.jsonl", tmp_path / "b.jsonl.gz"
    plain.write_text('{"turns": ["first", "second"]}\n' * (MOST_GIVEN + 5), encoding="utf-8")
    packed.write_bytes(gzip.compress(b'{"prompt": "one"}\n{"prompt": "two"}\n'))
    assert read_prompts(plain) == ["first"] * MOST_GIVEN
    assert read_prompts(packed) == ["one", "two"]


def test_a_file_without_prompts_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "odd.jsonl"
    path.write_text('{"text": "no prompt"}\n', encoding="utf-8")
    options = ["bench", "--only", "speculation", "--prompts", str(path)]
    result = CliRunner().invoke(main, options)
    assert result.exit_code == 2
    assert "neither a prompt nor turns" in result.stderr


def test_json_has_the_gains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speculation_bench, "own_prompts", lambda: {"questions": ["why?"]})
    sets = [option for each in SIMULATED for option in ("--set", each)]
    options = ["bench", "--only", "speculation", "--rounds", "1", "--json", *sets]
    result = CliRunner().invoke(main, options, catch_exceptions=False)
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    assert set(report["speculation"]) == {"questions"}
    assert set(report["speculation"]["questions"]) == {"0", "1"}
