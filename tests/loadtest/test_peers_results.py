"""What rounds beside other engines come to: medians, ratios, tables, and their file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from app.cli import main
from app.model_files import DEFAULT_MODEL
from loadtest.peers.report import goal, markdown
from loadtest.peers.results import Entrant, Ratio, Results, load
from loadtest.peers.servers import Served
from loadtest.peers.work import Times, Work

MACHINE = {"model": "Abacus", "cores": 2, "flags": ["avx2"], "python": "3.11.1"}
RESULTS = Path(__file__).parents[2] / "loadtest" / "RESULTS.md"
SAMPLES = RESULTS.parent / "peers" / "results.json"


def results() -> Results:
    """Ours and two peers on 128x8, and two of them over HTTP."""
    found = Results("tiny.gguf", MACHINE, "2026-01-02")
    for name in ("octavo", "slow", "quick"):
        found.enter(name, Entrant(f"what {name} computes", "1.0"))
    for name, firsts in {"octavo": (1, 3, 2), "slow": (20,), "quick": (3, 5)}.items():
        for first in firsts:
            found.add(name, "128x8", Times(first, 10 * first))
    found.add("octavo", "128x32", Times(4, 20.48))
    found.add_served("octavo", Served(90, 12.5, 3))
    found.add_served("slow", Served(18, 100, 30))
    return found


def test_a_figure_is_the_median_of_its_rounds_and_none_without_one() -> None:
    found = results()
    assert found.median("octavo", "128x8", "prefill") == 8 * 128 / 2
    assert found.median("octavo", "128x8", "decode") == 8 * 63 / 18
    assert found.median("quick", "128x8", "output") == 8 * 64 / 40
    assert found.median("slow", "128x64", "decode") is None
    assert found.median("nobody", "128x8", "decode") is None
    assert found.rounds == 3


def test_ours_is_compared_with_the_best_peer() -> None:
    found = results()
    assert found.ratio("128x8", "prefill") == Ratio("quick", 2.0)
    assert found.ratio("128x32", "prefill") is None  # no peer has done it
    assert found.served_ratio() == Ratio("slow", 5.0)
    assert found.served_share("octavo") == 0.9  # 90 of 100 tokens a second without HTTP
    assert found.served_share("slow") is None


def test_what_another_version_did_is_forgotten_and_the_same_version_goes_on() -> None:
    found = results()
    found.enter("octavo", Entrant("what octavo computes", "1.0"))
    assert found.median("octavo", "128x8", "prefill") == 512
    found.enter("octavo", Entrant("what octavo computes", "1.1"))
    assert found.median("octavo", "128x8", "prefill") is None
    assert found.served_median("octavo", "output_tok_s") is None
    assert found.median("quick", "128x8", "prefill") == 256


def test_the_file_gives_back_what_was_saved(tmp_path: Path) -> None:
    found = results()
    found.notes.append("a note")
    found.entrants["slow"] = Entrant("what", "1.0", failure="it fell asleep")
    found.save(tmp_path / "results.json")
    assert load(tmp_path / "results.json") == found
    summary = json.loads((tmp_path / "results.json").read_text())["summary"]
    assert summary["direct"]["128x8"]["prefill"] == {
        "median": {"octavo": 512, "slow": 51.2, "quick": 256},
        "ours_over_best": {"peer": "quick", "ratio": 2.0},
    }
    assert summary["http"]["of_direct"]["octavo"] == 0.9


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"model": "x", "direct": []}'])
def test_a_file_of_something_else_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"other\.json holds no results"):
        load(path)


def test_the_tables_hold_every_engine_and_say_whether_a_goal_is_met() -> None:
    found = results()
    found.entrants["slow"] = Entrant("what", "1.0", failure="it fell | asleep")
    text = markdown(found)
    assert "| octavo | – | 512 | 1,024 | – |" in text
    assert "| quick | – | 256 | – | – |" in text
    assert "| octavo over the best peer | – | 2.00 (≥ 1.5; quick) | – | – |" in text
    assert "| octavo | 90.0 | 90% | 12.5 | 3.0 | 0 |" in text
    assert "| slow | what | 1.0 | 1 | 1 | it fell \\| asleep |" in text
    assert "2,000 tokens in" not in text  # nobody did that
    assert "tiny.gguf on Abacus, 2 cores (avx2), Python 3.11.1, 2026-01-02" in text


def test_a_missed_goal_is_called_one() -> None:
    found = results()
    found.add("quick", "128x32", Times(3.2, 20))
    assert "0.80 (missed: 1.5; quick)" in markdown(found)
    assert (goal(Work(2000, 64, 1)), goal(Work(2000, 64, 8))) == (1.3, 1.5)


def test_the_published_tables_are_what_the_samples_come_to() -> None:
    assert markdown(load(SAMPLES)) in RESULTS.read_text()


# ── the command ───────────────────────────────────────────────────────────────────────────────


def bench_peers(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["bench-peers", *map(str, arguments)])


def test_without_rounds_the_command_shows_what_the_file_holds(tmp_path: Path) -> None:
    results().save(tmp_path / "results.json")
    shown = bench_peers("--rounds", "0", "--markdown", "--json", tmp_path / "results.json")
    assert shown.exit_code == 0
    assert shown.stdout == markdown(results())


def test_rounds_are_not_added_to_those_of_another_machine(tmp_path: Path) -> None:
    results().save(tmp_path / "results.json")
    model = tmp_path / DEFAULT_MODEL.file
    model.touch()
    done = bench_peers("--model", model, "--json", tmp_path / "results.json")
    assert done.exit_code == 2
    assert "about tiny.gguf on Abacus; name another file" in " ".join(done.output.split())


def test_a_file_of_something_else_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text("{}")
    done = bench_peers("--rounds", "0", "--json", tmp_path / "other.json")
    assert done.exit_code == 2
    assert "holds no results of octavo bench-peers" in " ".join(done.output.split())
