"""`classes` and `tenants`: tables whose entries people name themselves."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from click.testing import CliRunner

from app.cli import main
from app.config import load_config, load_with_sources
from app.config.schema import ClassConfig
from engine.errors import ConfigurationError

YAML = """
classes:
  interactive: {ttft_s: 0.5, priority: -1, max_waiting: 8}
  batch:
tenants:
  acme:
    keys: [key-of-acme, another]
    weight: 2
    classes: [interactive, default]
"""


def problem(*overrides: str, text: str = "") -> str:
    Path("config.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigurationError) as caught:
        load_config(overrides=overrides)
    return str(caught.value)


def test_entries_have_the_names_that_the_file_gives_them() -> None:
    Path("config.yaml").write_text(YAML, encoding="utf-8")
    config = load_config()
    assert config.classes == {
        "interactive": ClassConfig(ttft_s=0.5, priority=-1, max_waiting=8),
        "batch": ClassConfig(),
    }
    assert len(config.tenants["acme"].keys) == 2


def test_of_a_key_no_more_than_its_hash_is_kept_however_it_is_written() -> None:
    digest = hashlib.sha256(b"key-of-acme").hexdigest()
    for text in ("key-of-acme", f"sha256:{digest}", f"sha256:{digest.upper()}"):
        config = load_config(overrides=[f"tenants.a.keys=['{text}']"])
        assert [key.get_secret_value() for key in config.tenants["a"].keys] == [f"sha256:{digest}"]
    assert load_config(overrides=["server.admin_key=k"]).server.admin_key.get_secret_value() == (
        "sha256:" + hashlib.sha256(b"k").hexdigest()
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("sha256:abc", "expected 64 hexadecimal digits after sha256:"),
        (f"sha256:{'g' * 64}", "expected 64 hexadecimal digits after sha256:"),
        (f"sha256:{hashlib.sha256(b'').hexdigest()}", "this one is of an empty text"),
        ("**********", "expected letters, digits"),
    ],
)
def test_what_is_neither_key_nor_hash_of_one_is_refused_and_not_shown(text, why) -> None:
    told = problem(f"tenants.a.keys=['{text}']")
    assert why in told
    assert text not in told


def test_a_hash_and_its_key_are_one_key() -> None:
    digest = hashlib.sha256(b"another").hexdigest()
    told = problem(f"tenants.b.keys=['sha256:{digest}']", text=YAML)
    assert told == "--set: tenants.b.keys: a key that tenants.acme.keys is or has, too"


@pytest.mark.parametrize("text", ["https://a.example/", "a.example", "null", "https://A.example"])
def test_an_origin_that_no_browser_would_send_is_refused(text) -> None:
    assert "expected * or an origin" in problem(f"server.cors_origins=['{text}']")


def test_later_sources_add_entries_and_change_single_keys() -> None:
    Path("config.yaml").write_text(YAML, encoding="utf-8")
    loaded = load_with_sources(
        None,
        {"OCTAVO_CLASSES__BATCH__PRIORITY": "9"},
        ["tenants.acme.weight=3", "tenants.globex={}"],
    )
    assert loaded.config.classes["interactive"].ttft_s == 0.5
    assert loaded.config.classes["batch"].priority == 9
    assert (loaded.config.tenants["acme"].weight, len(loaded.config.tenants)) == (3, 2)
    assert loaded.sources["tenants.acme.weight"] == "--set"
    assert loaded.sources["tenants.acme.classes"] == "config.yaml:9"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("classes.a.tft_s=1", "classes.a.tft_s: unknown key; did you mean classes.a.ttft_s?"),
        ("tenants.a.max_running=1", "unknown key; max_running belongs under classes.a"),
        ("engine.weight=2", "engine.weight: unknown key; weight belongs under tenants.NAME"),
        ("classes.a.ttft_s=0", "classes.a.ttft_s: must be more than 0, got 0"),
        ("classes.a.max_blocks_fraction=1.5", "must be at most 1, got 1.5"),
        ("tenants.a.weight=1e-320", "tenants.a.weight: must be at least 1e-06, got 1e-320"),
        ("tenants.a.weight=1e7", "tenants.a.weight: must be at most 1000000, got 10000000"),
        ("classes.a=fast", 'classes.a: expected a mapping, got "fast"'),
        ("classes={a b: {}}", "classes.a b: a name has at most 64 letters, digits and -._"),
        ("tenants.a.classes=[x]", "tenants.a.classes: unknown class x; known classes: default"),
        ("identity.tenant_headers=[x y]", "expected the name of an HTTP header"),
        ("identity.require_key=true", "identity.require_key: no tenant has a key"),
    ],
)
def test_what_cannot_be_is_refused_by_its_key(override: str, message: str) -> None:
    assert message in problem(override)


def test_a_class_that_is_misspelt_is_told_the_nearest() -> None:
    told = problem("tenants.acme.classes=[interactiv]", text=YAML)
    assert told == (
        "--set: tenants.acme.classes: unknown class interactiv; did you mean interactive?"
    )


def test_a_key_that_opens_two_doors_is_refused_and_not_shown() -> None:
    told = problem("tenants.b.keys=[another]", text=YAML)
    assert told == "--set: tenants.b.keys: a key that tenants.acme.keys is or has, too"
    told = problem("server.admin_key=another", text=YAML)
    assert "tenants.acme.keys: a key that server.admin_key is or has, too" in told
    wrong = problem("tenants.b.keys=[with blank]")
    assert "tenants.b.keys.0" in wrong
    assert "with blank" not in wrong


def test_check_config_prints_what_can_be_read_again_without_the_keys() -> None:
    Path("config.yaml").write_text(YAML, encoding="utf-8")
    printed = CliRunner().invoke(main, ["check-config"])
    assert printed.exit_code == 0
    assert "key-of-acme" not in printed.stdout
    assert "# keys: set, and not shown  # config.yaml:7" in printed.stdout
    as_json = CliRunner().invoke(main, ["check-config", "--json"])
    assert "key-of-acme" not in as_json.stdout
    Path("again.yaml").write_text(printed.stdout, encoding="utf-8")
    again = load_config(Path("again.yaml"))
    assert again.classes == load_config().classes
    assert again.tenants["acme"].weight == 2
