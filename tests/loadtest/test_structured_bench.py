"""What grammars cost is measured beside the same requests without them."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from rich.console import Console

from app.cli import main
from app.config import load_config
from app.structured.source import Source
from loadtest import structured_bench
from loadtest.structured_bench import SCHEMAS, Bench, measure_structured, table, ticks

SIMULATED = ("engine.backend=simulated", "engine.simulated.real_time=false")
SLOW = Source("regex", "a?" * 2000, "p")


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(structured_bench, "HOSTILE", (SLOW, Source("regex", "([a-z", "p")))
    monkeypatch.setattr(structured_bench, "REQUESTS", 8)


def test_guided_and_free_requests_are_measured_at_each_temperature() -> None:
    happened: list[int] = []
    config = load_config(None, {}, SIMULATED)
    console = Console(stderr=True)
    found = measure_structured(config, console, 2, lambda: happened.append(1), steps=4)
    assert len(happened) == ticks(2)
    assert set(found.steps) == {"0", "1"}
    for steps in found.steps.values():
        assert min(steps.free_ms, steps.guided_ms, steps.ratio) > 0
    assert 0 < found.mask_us <= found.mask_p99_us
    assert found.hostile.refused == 2
    assert found.hostile.beside_ms <= found.hostile.longest_ms
    assert table(found).row_count == 5


def test_answers_of_who_is_guided_go_on_under_their_schemas() -> None:
    bench = Bench(load_config(None, {}, SIMULATED), Console(stderr=True))
    bench.compile(SCHEMAS)
    _, answers = bench.phase(4, 0.0, 12)
    assert [len(answer) >= 12 for answer in answers] == [True] * 4
    text = bench.core.tokenizer.decode
    assert [text(answer)[0] for answer in answers] == ["[", "[", "{", "["]
    assert len(bench.masks(answers)) == sum(map(len, answers))
    assert bench.core.engine.scheduler.live == 0
    bench.close()


def test_json_has_the_figures() -> None:
    sets = [option for each in SIMULATED for option in ("--set", each)]
    options = ["bench", "--only", "structured", "--rounds", "1", "--json", *sets]
    result = CliRunner().invoke(main, options, catch_exceptions=False)
    assert result.exit_code == 0
    report = json.loads(result.stdout)["structured"]
    assert set(report) == {"steps", "mask_us", "mask_p99_us", "hostile"}
