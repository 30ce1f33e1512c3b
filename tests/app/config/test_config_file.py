"""config.yaml in the checkout documents every knob and changes none."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from app.config import Config, load_config
from app.config.keys import fields, row, subsection

CONFIG_YAML = Path(__file__).parents[3] / "config.yaml"
LINE = re.compile(r"(?P<indent> *)(?P<key>\w+):(?: (?P<value>.*?))? +# (?P<comment>.*)")


def commented_keys() -> dict[tuple[str, ...], str]:
    """Each key path of config.yaml with its comment."""
    found: dict[tuple[str, ...], str] = {}
    path: list[str] = []
    for line in CONFIG_YAML.read_text(encoding="utf-8").splitlines():
        if match := LINE.fullmatch(line):
            path[len(match["indent"]) // 2 :] = [match["key"]]
            found[tuple(path)] = match["comment"]
    return found


def test_config_yaml_is_exactly_the_defaults() -> None:
    assert load_config(CONFIG_YAML) == Config()


def test_config_yaml_gives_a_value_for_every_knob() -> None:
    text = CONFIG_YAML.read_text(encoding="utf-8")
    given = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert len(given) == len(list(fields()))


def test_every_comment_is_the_description_in_the_schema() -> None:
    described = {}
    for path, field in fields():
        section = subsection(field)
        doc = (section.__doc__ or "").splitlines()[0] if section else None
        described[path] = field.description or doc
    assert commented_keys() == described


ROW = re.compile(r"# (?P<line>  .*|NAME: .*)")


def test_what_a_row_of_a_table_may_hold_is_told_in_comments() -> None:
    """Below `classes: {}` and the like come the keys of an entry, which is called NAME there."""
    text = CONFIG_YAML.read_text(encoding="utf-8")
    lines = [match["line"] for line in text.splitlines() if (match := ROW.fullmatch(line))]
    told = []
    for line in lines:
        match = LINE.fullmatch(line)
        assert match, line
        value = None if match["value"] is None else yaml.safe_load(match["value"])
        told.append((len(match["indent"]), match["key"], value, match["comment"]))
    expected = []
    for section in filter(None, (row(field) for _, field in fields())):
        expected.append((0, "NAME", None, section.__doc__))
        for name, field in section.model_fields.items():
            expected.append((2, name, field.default, field.description))
    assert told == expected


def test_every_description_is_given() -> None:
    assert all(field.description or subsection(field) for _, field in fields())
