"""Loading: three sources, checked alike, every problem named with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.config import Config, load_config, load_with_sources
from engine.errors import ConfigurationError


def write(text: str) -> Path:
    path = Path("octavo.yaml")
    path.write_text(text, encoding="utf-8")
    return path


def problems(
    text: str | None = None,
    environ: dict[str, str] | None = None,
    overrides: tuple[str, ...] = (),
) -> list[str]:
    """The lines of the error that loading ends in."""
    path = None if text is None else write(text)
    with pytest.raises(ConfigurationError) as caught:
        load_config(path, environ, overrides)
    return str(caught.value).splitlines()


@pytest.mark.parametrize("text", ["", "\n# nothing here\n", "---\n", "{}", "engine:\n", "~"])
def test_a_file_that_says_nothing_gives_the_defaults(text: str) -> None:
    assert load_config(write(text)) == Config()


def test_no_file_gives_the_defaults() -> None:
    loaded = load_with_sources()
    assert loaded.config == Config()
    assert loaded.file is None
    assert loaded.sources == {}


def test_set_outdoes_the_environment_which_outdoes_the_file() -> None:
    path = write("engine:\n  max_rows: 1\n  max_step_tokens: 100\n  threads: 4\n")
    environ = {"OCTAVO_ENGINE__MAX_ROWS": "2", "OCTAVO_ENGINE__MAX_STEP_TOKENS": "200"}
    loaded = load_with_sources(path, environ, ["engine.max_rows=3"])
    engine = loaded.config.engine
    assert (engine.max_rows, engine.max_step_tokens, engine.threads) == (3, 200, 4)
    assert loaded.sources == {
        "engine.max_rows": "--set",
        "engine.max_step_tokens": "OCTAVO_ENGINE__MAX_STEP_TOKENS",
        "engine.threads": "octavo.yaml:4",
    }


def test_the_last_of_two_overrides_of_a_key_counts() -> None:
    assert load_config(overrides=["server.port=1", "server.port=2"]).server.port == 2


def test_the_file_is_the_argument_else_the_variable_else_the_working_directory() -> None:
    Path("config.yaml").write_text("server: {port: 1}", encoding="utf-8")
    Path("named.yaml").write_text("server: {port: 2}", encoding="utf-8")
    Path("argument.yaml").write_text("server: {port: 3}", encoding="utf-8")
    environ = {"OCTAVO_CONFIG": "named.yaml"}
    assert load_config().server.port == 1
    assert load_config(None, environ).server.port == 2
    assert load_config(Path("argument.yaml"), environ).server.port == 3


def test_nested_sections_are_reached_from_every_source() -> None:
    path = write("engine: {simulated: {base_s: 0.5}}")
    environ = {"OCTAVO_ENGINE__SIMULATED__DECODE_S": "0.25"}
    simulated = load_config(path, environ, ["engine.simulated.real_time=false"]).engine.simulated
    assert (simulated.base_s, simulated.decode_s, simulated.real_time) == (0.5, 0.25, False)


def test_other_octavo_variables_are_left_alone() -> None:
    environ = {
        "OCTAVO_PORT": "tcp://10.0.0.1:80",
        "OCTAVO_PORT_80_TCP_ADDR": "10.0.0.1",
        "OCTAVO_SERVICE_HOST": "10.0.0.1",
        "OCTAVO_SERVER_PORT": "tcp://10.0.0.1:80",
        "OCTAVO_SERVER_SERVICE_HOST": "10.0.0.1",
        "OCTAVO_SERVER_SERVICE_PORT": "80",
        "OCTAVO_CONFIG": "",
        "HOME": "/",
    }
    assert load_config(None, environ) == Config()


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("OCTAVO_SERVER_PORT", "OCTAVO_SERVER__PORT"),
        ("OCTAVO_ENGINE_MAX_ROW", "OCTAVO_ENGINE__MAX_ROWS"),
        ("OCTAVO_ENGINE_SIMULATED_BASE_S", "OCTAVO_ENGINE__SIMULATED__BASE_S"),
    ],
)
def test_a_variable_with_single_underscores_that_means_a_knob_is_refused(
    given: str, meant: str
) -> None:
    (problem,) = problems(environ={given: "9000"})
    assert problem.startswith(f"{given}: ")
    assert problem.endswith(f"did you mean {meant}?")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "engine:\n  max_row: 8",
            "octavo.yaml:2: engine.max_row: unknown key; did you mean engine.max_rows?",
        ),
        ("port: 9000", "octavo.yaml:1: port: unknown key; port belongs under server"),
        ("log:\n  port: 1", "octavo.yaml:2: log.port: unknown key; port belongs under server"),
        ("serve:\n  port: 1", "octavo.yaml:1: serve: unknown key; did you mean server?"),
        (
            "max_step_token: 1",
            "octavo.yaml:1: max_step_token: unknown key; did you mean engine.max_step_tokens?",
        ),
        ("text: {zzz: 1}", "octavo.yaml:1: text.zzz: unknown key; known here: workers"),
        ("server: 8000", "octavo.yaml:1: server: expected a mapping, got 8000"),
        ("- a\n- b", "octavo.yaml:1: expected a mapping, got a list"),
        ("just text", 'octavo.yaml:1: expected a mapping, got "just text"'),
        ("? [a]\n: 1", "octavo.yaml:1: not YAML: a key must be a name"),
    ],
)
def test_a_wrong_key_is_named_with_its_line_and_what_was_meant(text: str, expected: str) -> None:
    assert problems(text) == [expected]


def test_a_duplicate_key_is_an_error_that_names_both_lines() -> None:
    assert problems("server:\n  port: 1\n  host: a\n  port: 2\n") == [
        "octavo.yaml:4: server.port: given twice; first on line 2"
    ]


def test_a_duplicate_section_is_an_error() -> None:
    assert problems("log: {}\nserver: {}\nlog: {}\n") == [
        "octavo.yaml:3: log: given twice; first on line 1"
    ]


def test_a_duplicate_inside_a_policy_parameter_is_an_error() -> None:
    text = "scheduler:\n  params:\n    weights:\n      a: 1\n      a: 2\n"
    assert problems(text)[0] == (
        "octavo.yaml:5: scheduler.params.weights.a: given twice; first on line 4"
    )


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ('engine.max_rows="16"', 'engine.max_rows: expected an integer, got "16"; drop the quotes'),
        ("engine.max_rows=16.5", "engine.max_rows: expected an integer, got 16.5"),
        ("engine.max_rows=1e3", "engine.max_rows: expected an integer, got 1000.0; write 1000"),
        ("engine.max_rows=true", "engine.max_rows: expected an integer, got true"),
        ("engine.max_rows=yes", 'engine.max_rows: expected an integer, got "yes"'),
        ("engine.max_rows=", "engine.max_rows: expected an integer, got null"),
        ("engine.max_rows=[1]", "engine.max_rows: expected an integer, got a list"),
        ("engine.max_rows.x=1", "engine.max_rows: expected an integer, got a mapping"),
        ("engine.max_rows=0", "engine.max_rows: must be at least 1, got 0"),
        ("engine.max_rows=-16", "engine.max_rows: must be at least 1, got -16"),
        ("engine.max_step_tokens=0", "engine.max_step_tokens: must be at least 1, got 0"),
        ("server.port=70000", "server.port: must be at most 65535, got 70000"),
        ("server.host=''", "server.host: must not be empty"),
        ("model.name=135", 'model.name: expected a string, got 135; write "135" with the quotes'),
        ("api.strict_fields=on", 'api.strict_fields: expected true or false, got "on"'),
        ("api.strict_fields=1", "api.strict_fields: expected true or false, got 1"),
        (
            "log.level=wraning",
            'log.level: expected debug, info, warning or error; got "wraning";'
            " did you mean warning?",
        ),
        ("sse.keepalive_interval_s=.inf", "expected a finite number, got Infinity"),
        ("sse.keepalive_interval_s=-1", "must be at least 0, got -1"),
        ("engine.kv_memory=3MB", 'a size such as 512MiB or 2GiB; got "3MB"'),
        ("engine.kv_memory=0", "a size such as 512MiB or 2GiB; got 0"),
        ("engine.kv_memory=true", "a size such as 512MiB or 2GiB; got true"),
        ("engine.offload_memory=auto", 'a size such as 512MiB or 2GiB; got "auto"'),
        ("engine.offload_memory=-1", "a size such as 512MiB or 2GiB; got -1"),
        (
            "engine.kv_dtype=int9",
            'engine.kv_dtype: expected auto, float32, bfloat16, int8 or fp8; got "int9";'
            " did you mean int8?",
        ),
        (
            "engine.backend=cude",
            'engine.backend: expected auto, cpu, cuda or simulated; got "cude"; did you mean cuda?',
        ),
        ("engine.cuda.graphs=[4, 2]", "such as [1, 2, 4, 8]; got a list"),
        ("engine.cuda.graphs=[0, 2]", "such as [1, 2, 4, 8]; got a list"),
        ("engine.cuda.graphs=[true]", "such as [1, 2, 4, 8]; got a list"),
        ("engine.cuda.graphs=8", "such as [1, 2, 4, 8]; got 8"),
        ("engine.cuda.memory_fraction=1.1", "must be at most 1, got 1.1"),
        ("engine.simulated.total_blocks=9999999", "must be at most 4194304, got 9999999"),
        ("engine.simulated.host_blocks=9999999", "must be at most 4194304, got 9999999"),
        ("engine.depth=2", "engine.depth: must be at most 1, got 2"),
        ("guard.max_step_cpu_s=0", "guard.max_step_cpu_s: must be more than 0, got 0"),
        ("scheduler.params=3", "scheduler.params: expected a mapping, got 3"),
        ("scheduler.policy=fcsf", "scheduler.policy: unknown policy fcsf; did you mean fcfs?"),
    ],
)
def test_every_source_refuses_a_wrong_value_in_the_same_words(override: str, expected: str) -> None:
    key, _, value = override.partition("=")
    variable = f"OCTAVO_{key.upper().replace('.', '__')}"
    nested = value
    for part in reversed(key.split(".")):
        nested = f"{{{part}: {nested}}}"

    (from_set,) = problems(overrides=(override,))
    (from_environment,) = problems(environ={variable: value})
    (from_file,) = problems(nested)

    assert from_set.startswith(f"--set: {key.rsplit('.x')[0]}: ")
    assert from_set.endswith(expected)
    assert from_environment == from_set.replace("--set", variable, 1)
    assert from_file == from_set.replace("--set", "octavo.yaml:1", 1)


def test_an_unknown_variable_is_named_with_the_nearest_key() -> None:
    assert problems(environ={"OCTAVO_ENGINE__MAX_ROW": "8"}) == [
        "OCTAVO_ENGINE__MAX_ROW: engine.max_row: unknown key; did you mean engine.max_rows?"
    ]


def test_a_wrong_value_is_reported_even_if_a_later_source_outdoes_it() -> None:
    assert problems("server: {port: -1}", overrides=("server.port=80",)) == [
        "octavo.yaml:1: server.port: must be at least 0, got -1"
    ]


def test_all_problems_of_all_sources_are_listed_at_once() -> None:
    lines = problems(
        "engine:\n  max_row: 8\nserver:\n  port: -1\n",
        {"OCTAVO_LOG__LEVEL": "loud"},
        ("nonsense", "text.workers=0"),
    )
    assert [line.split(": ")[0] for line in lines] == [
        "octavo.yaml:2",
        "octavo.yaml:4",
        "OCTAVO_LOG__LEVEL",
        "--set nonsense",
        "--set",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("server:\n\tport: 1", "octavo.yaml:2: not YAML: found character a tab"),
        ("server: [", "octavo.yaml:1: not YAML: "),
        ("server: {port: 1", "octavo.yaml:1: not YAML: "),
        ("a: 1\n---\nb: 2", "octavo.yaml:2: not YAML: "),
        ("server: {port: *x}", "octavo.yaml:1: not YAML: found undefined alias"),
        ("server: {port: !!set {}}", "octavo.yaml:1: "),
        ("server: {port: !!python/name:os.system x}", "octavo.yaml:1: not YAML: unknown tag"),
        ("server: {port: !!int x}", "octavo.yaml:1: not YAML: x is not a number"),
        (f"server: {{port: {'9' * 5000}}}", "octavo.yaml:1: not YAML: 999"),
        ("server: \x00", "octavo.yaml: not YAML: "),
        ("server: &a {port: *a}", "octavo.yaml: an anchor that holds itself"),
        ("[" * 5000, "octavo.yaml: not YAML: nested too deeply"),
    ],
)
def test_text_that_is_not_usable_yaml_is_one_line_with_its_place(text: str, expected: str) -> None:
    (line,) = problems(text)
    assert line.startswith(expected)


@pytest.mark.parametrize("name", ["missing.yaml", "."])
def test_a_file_that_cannot_be_read_is_named(name: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"^{name}: cannot be read: "):
        load_config(Path(name))


def test_a_file_that_is_not_utf_8_is_named() -> None:
    Path("latin.yaml").write_bytes(b"model: {name: caf\xe9}")
    with pytest.raises(ConfigurationError, match=r"^latin\.yaml: is not UTF-8 text$"):
        load_config(Path("latin.yaml"))


def test_scalars_are_read_as_yaml_1_2_reads_them() -> None:
    config = load_config(
        overrides=[
            "server.host=on",
            "server.port=010",
            "model.name=1:30",
            "server.shutdown_grace_s=1e3",
            "sse.keepalive_interval_s=2",
            "limits.max_stop_chars=0x10",
            "model.path=2026-01-01",
        ]
    )
    assert config.server.host == "on"
    assert config.server.port == 10
    assert config.model.name == "1:30"
    assert config.server.shutdown_grace_s == 1000.0
    assert config.sse.keepalive_interval_s == 2.0
    assert config.limits.max_stop_chars == 16
    assert config.model.path == "2026-01-01"


@pytest.mark.parametrize(
    ("value", "size"),
    [("auto", "auto"), ("512MiB", 2**29), ("2 GiB", 2**31), ("1KiB", 1024), ("4096", 4096)],
)
def test_kv_memory_is_auto_bytes_or_a_size(value: str, size: object) -> None:
    assert load_config(overrides=[f"engine.kv_memory={value}"]).engine.kv_memory == size


@pytest.mark.parametrize(("value", "size"), [("0", 0), ("512MiB", 2**29), ("4096", 4096)])
def test_offload_memory_is_bytes_or_a_size_or_none_at_all(value: str, size: int) -> None:
    assert load_config(overrides=[f"engine.offload_memory={value}"]).engine.offload_memory == size


def test_parameters_of_several_sources_join_and_an_empty_mapping_clears_them() -> None:
    path = write(
        "scheduler: {policy: 'support.policy_samples:Sample', params: {window: 1, factor: 2}}"
    )
    joined = load_config(path, {}, ["scheduler.params.window=3"])
    assert joined.scheduler.params == {"window": 3, "factor": 2}
    cleared = load_config(path, {}, ["scheduler.params={}", "scheduler.params.window=4"])
    assert cleared.scheduler.params == {"window": 4}


def test_a_wrong_parameter_is_named_with_its_line() -> None:
    policy = "support.policy_samples:Sample"
    text = f"scheduler:\n  policy: {policy}\n  params:\n    windw: 1\n    window: a\n"
    assert problems(text) == [
        "octavo.yaml:4: scheduler.params.windw: unknown parameter; did you mean window?",
        'octavo.yaml:5: scheduler.params.window: expected an integer, got "a"',
    ]


# -------------------------------------------------------------------- secrets


@pytest.mark.parametrize("text", ["314159265", "true", "[314159265]", "a 314159265", "é314159265"])
def test_a_secret_that_cannot_be_used_is_refused_without_being_shown(text: str) -> None:
    (problem,) = problems(environ={"OCTAVO_SERVER__ADMIN_KEY": text})
    assert problem.startswith("OCTAVO_SERVER__ADMIN_KEY: server.admin_key: expected ")
    assert "not shown" in problem
    assert "314159265" not in problem


def test_a_secret_as_it_is_printed_is_no_secret() -> None:
    printed = load_config(overrides=["server.admin_key=abc"]).model_dump_json()
    with pytest.raises(ConfigurationError, match="admin_key"):
        load_config(overrides=[f"server={printed[printed.index(':') + 1 :].split('}')[0]}}}"])
