"""A configuration that cannot work is told in one message, and nothing is started."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from app.cli import main

SIMULATED = ["--set", "engine.backend=simulated", "--set", "server.port=0"]


@pytest.fixture(autouse=True)
def empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("OCTAVO_CONFIG", "OCTAVO_ADMIN_KEY"):
        monkeypatch.delenv(name, raising=False)


def run(*arguments: str, env: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(main, arguments, env=env)


def refused(result: Result, *words: str) -> None:
    """Exit code 2, one message with these words in it, and no traceback."""
    assert result.exit_code == 2, result.output
    assert isinstance(result.exception, SystemExit)
    assert "Traceback" not in result.output
    log, _, message = result.stderr.partition("Error: ")
    assert all('"loading: ' in line for line in log.splitlines())
    assert "Error" not in message
    for word in words:
        assert word in message


WRONG = [
    ("engine: {max_row: 8}", "config.yaml:1", "engine.max_row", "engine.max_rows?"),
    ("max_rows: 8", "config.yaml:1", "max_rows belongs under engine"),
    ("server:\n  max_rows: 8", "config.yaml:2", "server.max_rows", "belongs under engine"),
    ("engine:\n  max_rows: 8\n  max_rows: 9", "config.yaml:3", "engine.max_rows", "line 2"),
    ("engine: {max_rows: 8}\nengine: {depth: 1}", "config.yaml:2", "engine", "line 1"),
    ("engine: {block_size: 16}", "config.yaml:1", "engine.block_size", "unknown key"),
    ("engine: {max_rows: 0}", "config.yaml:1", "engine.max_rows", "at least 1"),
    ("engine: {max_rows: -16}", "config.yaml:1", "engine.max_rows", "at least 1"),
    ('engine: {max_rows: "16"}', "config.yaml:1", "engine.max_rows", "drop the quotes"),
    ("engine: {max_rows: 16.5}", "config.yaml:1", "engine.max_rows", "16.5"),
    ("engine: {max_rows: 1e3}", "config.yaml:1", "engine.max_rows", "write 1000"),
    ("engine: {max_rows: yes}", "config.yaml:1", "engine.max_rows", '"yes"'),
    ("engine: {max_step_tokens: 0}", "config.yaml:1", "engine.max_step_tokens", "at least 1"),
    ("api: {strict_fields: yes}", "config.yaml:1", "api.strict_fields", "true or false"),
    ("scheduler: {policy: fcsf}", "config.yaml:1", "scheduler.policy", "fcfs?"),
    ("server: {port: 70000}", "config.yaml:1", "server.port", "65535"),
    ("- a\n- b", "config.yaml:1", "expected a mapping"),
    ("server:\n\tport: 1", "config.yaml:2", "tab"),
    ("server: [", "config.yaml:1", "not YAML"),
    ("model: {max_model_len: 1}", "config.yaml:1", "model.max_model_len", "at least 2"),
]


@pytest.mark.parametrize(("text", "words"), [(text, words) for text, *words in WRONG])
@pytest.mark.parametrize("command", ["serve", "check-config"])
def test_b60_a_file_that_means_nothing_is_refused_with_file_key_and_what_was_meant(
    command, text, words
) -> None:
    Path("config.yaml").write_text(text, encoding="utf-8")
    refused(run(command, *(SIMULATED if command == "serve" else [])), *words)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (
            ["model.max_model_len=2000", "engine.simulated.total_blocks=100"],
            ["engine.simulated.total_blocks", "100 blocks", "125", "max_model_len = 2000"],
        ),
        (
            ["engine.max_step_tokens=2", "engine.max_rows=64"],
            ["engine.max_rows", "max_step_tokens"],
        ),
        (["model.max_model_len=99999999"], ["model.max_model_len"]),
        (["scheduler.policy=slo", "scheduler.params.patiens=1"], ["patiens", "patience?"]),
        (
            ["experiment.arms={a: {policy: slo}, b: {policy: fcfs, params: {backfill: -1}}}"],
            ["experiment.arms.b.params", "backfill must not be negative"],
        ),
    ],
)
def test_b60_what_cannot_work_together_is_refused_with_the_numbers(overrides, words) -> None:
    options = [part for override in overrides for part in ("--set", override)]
    refused(run("serve", *SIMULATED, *options), *words)


@pytest.mark.parametrize("command", ["serve", "check-config"])
def test_b60_a_file_that_is_not_there_and_a_variable_that_means_nothing_are_named(command) -> None:
    options = SIMULATED if command == "serve" else []
    refused(run(command, *options, "--config", "nowhere.yaml"), "nowhere.yaml")
    refused(run(command, *options, env={"OCTAVO_CONFIG": "nowhere.yaml"}), "nowhere.yaml")
    for name in ("OCTAVO_ENGINE__MAX_ROW", "OCTAVO_ENGINE_MAX_ROW"):
        refused(run(command, *options, env={name: "8"}), name, "did you mean")
    refused(run(command, *options, "--set", "engine.max_row=8"), "--set", "engine.max_rows?")


def test_b60_all_that_is_wrong_is_told_at_once() -> None:
    Path("config.yaml").write_text("engine:\n  max_row: 8\nserver:\n  port: 70000\n")
    result = run("serve", *SIMULATED)
    refused(result, "2 problems", "config.yaml:2", "config.yaml:4")


@pytest.mark.parametrize("text", ["", "# nothing", "{}", "engine:\n"])
def test_b60_an_empty_file_is_the_defaults(text) -> None:
    Path("config.yaml").write_text(text, encoding="utf-8")
    result = run("check-config")
    assert result.exit_code == 0
    assert "max_rows: 64" in result.stdout


def test_b60_check_config_shows_what_holds_and_from_where() -> None:
    """--set goes before the environment, which goes before the file."""
    Path("config.yaml").write_text("engine: {max_rows: 1, depth: 1, threads: 1}", encoding="utf-8")
    env = {"OCTAVO_ENGINE__MAX_ROWS": "2", "OCTAVO_ENGINE__THREADS": "2"}
    result = run("check-config", "--set", "engine.max_rows=3", env=env)
    assert result.exit_code == 0
    rows = [line.strip() for line in result.stdout.splitlines()]
    for key, value, source in (
        ("max_rows", 3, "--set"),
        ("threads", 2, "OCTAVO_ENGINE__THREADS"),
        ("depth", 1, "config.yaml:1"),
    ):
        (row,) = [row for row in rows if row.startswith(f"{key}: ")]
        assert row.startswith(f"{key}: {value}")
        assert source in row
