"""The command line: lazy commands, help without heavy imports, errors without tracebacks."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import EntryPoint, version
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from app import cli
from app.cli import main, short_help
from app.config import Config, load_config
from engine.errors import ConfigurationError, ModelError


@click.command()
@click.argument("message")
def failing(message: str) -> None:
    """Fail as a command does that cannot start."""
    raise ModelError(message)


@click.command()
def broken() -> None:
    """Fail as a command does that has a bug."""
    raise RuntimeError("a bug")


@pytest.fixture(autouse=True)
def empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def extra_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {
        name: EntryPoint(name, value, cli.ENTRY_POINTS)
        for name, value in {
            "failing": f"{__name__}:failing",
            "broken": f"{__name__}:broken",
            "uninstalled": "no_such_package.commands:run",
            "no-command": f"{__name__}:json",
        }.items()
    }
    monkeypatch.setattr(cli, "_commands", lambda: found)


def run(*arguments: str) -> click.testing.Result:
    return CliRunner().invoke(main, arguments)


def test_help_lists_every_command_with_its_short_help() -> None:
    result = run("--help")
    assert result.exit_code == 0
    assert "serve" in result.output
    words = " ".join(result.output.split())
    assert "check-config Print the configuration that is in effect." in words


def test_help_imports_no_command_and_nothing_heavy() -> None:
    script = (
        "import sys\n"
        "from app.cli import main\n"
        "main(['--help'], standalone_mode=False)\n"
        "heavy = {'torch', 'numpy', 'pydantic', 'yaml', 'starlette', 'app.commands.check_config'}\n"
        "sys.exit(' '.join(heavy & sys.modules.keys()) or 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_every_command_shows_an_example() -> None:
    result = run("check-config", "--help")
    assert result.exit_code == 0
    assert "Example:\n    octavo check-config " in result.output


def test_version_is_the_version_of_the_distribution() -> None:
    assert run("--version").output == f"octavo {version('octavo')}\n"


def test_an_unknown_command_is_answered_with_the_nearest() -> None:
    result = run("chek-config")
    assert result.exit_code == 2
    assert "No such command 'chek-config'. Did you mean 'check-config'?" in result.stderr


@pytest.mark.parametrize(
    ("option", "key"),
    [
        ("--port", "server.port"),
        ("--max-model-len", "model.max_model_len"),
        ("--model", "model.path"),
    ],
)
def test_an_option_that_is_a_key_is_answered_with_the_key(option: str, key: str) -> None:
    result = run("check-config", option, "1")
    assert result.exit_code == 2
    assert f"No such option '{option}'. Did you mean --set {key}=...?" in result.stderr


def test_other_unknown_options_are_answered_as_click_does() -> None:
    assert "No such option '--sett'. Did you mean '--set'?" in run("serve", "--sett", "a").stderr
    assert "did you mean --set" not in run("capacity", "--port", "1").stderr.lower()


@pytest.mark.usefixtures("extra_commands")
def test_a_configuration_error_is_one_message_and_exit_code_2() -> None:
    result = run("failing", "model.path: no tensor token_embd.weight")
    assert result.exit_code == cli.CONFIGURATION_EXIT_CODE == 2
    assert result.stderr == "Error: model.path: no tensor token_embd.weight\n"
    assert result.stdout == ""


@pytest.mark.usefixtures("extra_commands")
def test_several_problems_are_listed_one_a_line() -> None:
    assert run("failing", "a: wrong\nb: wrong").stderr == (
        "Error: 2 problems in the configuration\n  a: wrong\n  b: wrong\n"
    )


@pytest.mark.usefixtures("extra_commands")
def test_a_bug_is_not_dressed_up_as_a_configuration_error() -> None:
    result = run("broken")
    assert isinstance(result.exception, RuntimeError)


@pytest.mark.usefixtures("extra_commands")
def test_a_command_whose_package_is_missing_says_which() -> None:
    result = run("uninstalled")
    assert result.exit_code == 1
    assert result.stderr == "Error: uninstalled needs no_such_package, not installed\n"


@pytest.mark.usefixtures("extra_commands")
def test_an_entry_point_that_is_no_command_is_refused() -> None:
    assert "is not a click command" in run("no-command").stderr


@pytest.mark.usefixtures("extra_commands")
def test_help_survives_a_command_whose_package_is_missing() -> None:
    result = run("--help")
    assert result.exit_code == 0
    assert "uninstalled" in result.output


@pytest.mark.parametrize("module", ["no_such_package.x", "app.no_such_module", "sys"])
def test_a_module_without_a_docstring_to_read_has_no_short_help(module: str) -> None:
    assert short_help(module) == ""


def test_check_config_prints_yaml_that_loads_to_the_same_configuration() -> None:
    overrides = ["model.name=1e3", "model.path=true", "server.host=a b", "engine.max_rows=7"]
    overrides[:2] = ['model.name="1e3"', 'model.path="true"']
    result = run("check-config", *(part for o in overrides for part in ("--set", o)))
    assert result.exit_code == 0
    Path("printed.yaml").write_text(result.stdout, encoding="utf-8")
    assert load_config(Path("printed.yaml")) == load_config(overrides=overrides)


def test_check_config_names_the_source_of_each_value_that_is_not_the_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Path("my.yaml").write_text("server:\n  port: 1234\n  host: 127.0.0.1\n", encoding="utf-8")
    monkeypatch.setenv("OCTAVO_TEXT__WORKERS", "3")
    result = run("check-config", "--config", "my.yaml", "--set", "log.level=debug")
    commented = [line.strip() for line in result.stdout.splitlines() if "#" in line]
    assert commented == [
        "# my.yaml",
        "port: 1234  # my.yaml:2",
        "workers: 3  # OCTAVO_TEXT__WORKERS",
        "level: debug  # --set",
    ]


def test_check_config_tells_what_the_policy_refuses() -> None:
    result = run("check-config", "--set", "scheduler.params.backfill=-1")
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: scheduler.params: policy fcfs refuses them: backfill ")


@pytest.mark.parametrize(
    ("section", "policies"),
    [
        ("experiment.arms", "{a: {policy: fcfs}, b: {policy: fcfs, params: {backfill: -1}}}"),
        ("shadow.policies", "{b: {policy: fcfs, params: {backfill: -1}}}"),
    ],
)
def test_check_config_tells_what_other_policies_refuse(section: str, policies: str) -> None:
    result = run("check-config", "--set", f"{section}={policies}")
    assert result.exit_code == 2
    expected = f"Error: {section}.b.params: policy fcfs refuses them: backfill "
    assert result.stderr.startswith(expected)


def test_check_config_prints_json() -> None:
    result = run("check-config", "--json", "--set", "server.port=0")
    assert Config.model_validate(json.loads(result.stdout)) == load_config(
        overrides=["server.port=0"]
    )


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_check_config_never_prints_a_secret(form: tuple[str, ...]) -> None:
    result = run("check-config", *form, "--set", "server.admin_key=s3cret-key")
    assert result.exit_code == 0
    assert "s3cret" not in result.output
    assert "admin_key: set, and not shown  # --set" in result.stdout or form
    assert '"admin_key": null' in run("check-config", "--json").stdout
    assert "admin_key: null" in run("check-config").stdout


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_check_config_never_prints_headers_of_a_collector(form: tuple[str, ...]) -> None:
    given = "tracing.headers={authorization: s3cret-key}"
    result = run("check-config", *form, "--set", given)
    assert result.exit_code == 0
    assert "s3cret" not in result.output
    assert "headers: set, and not shown  # --set" in result.stdout or form
    assert "headers: {}" in run("check-config").stdout


def test_check_config_refuses_a_missing_file() -> None:
    result = run("check-config", "--config", "missing.yaml")
    assert result.exit_code == 2
    assert result.stderr == "Error: missing.yaml: cannot be read: No such file or directory\n"


def test_the_installed_command_ends_without_a_traceback() -> None:
    octavo = Path(sys.executable).with_name("octavo")
    done = subprocess.run(
        [octavo, "check-config", "--set", "engine.max_row=8"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        "Error: --set: engine.max_row: unknown key; did you mean engine.max_rows?\n"
    )


def test_model_errors_are_configuration_errors() -> None:
    assert issubclass(ModelError, ConfigurationError)


def test_check_config_says_what_the_backend_comes_to_here_and_why() -> None:
    result = run("check-config", "--set", "engine.backend=cpu", "--json")
    assert result.stderr == "engine.backend is cpu: engine.backend says so\n"
    result = run("check-config", "--set", "model.dtype=int8")
    assert result.stderr == "engine.backend is cpu: model.dtype = int8 is for CPUs\n"
    result = run("check-config", "--set", "engine.backend=cpu", "--set", "engine.kv_dtype=fp8")
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: engine.kv_dtype: fp8 is not computed on cpu")
