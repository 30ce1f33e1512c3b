"""The list of faults in README.md is complete, and each has a test that bears its id."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
NOTES = HERE.parents[2] / "shared" / "notes" / "faults.md"
OF_THE_NEXT = {"B47", "B48"}
"""Constrained output, which is refused so far."""
ROW = re.compile(r"^\| (B\d\d) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)


def listed() -> dict[str, set[str]]:
    """Ids with the modules that test them."""
    rows = ROW.findall((HERE / "README.md").read_text(encoding="utf-8"))
    assert len(rows) == len({id for id, _, _ in rows})
    return {id: set(modules.split(", ")) for id, _, modules in rows}


def in_names() -> dict[str, set[str]]:
    """The same, from the names of the tests, in whatever folder."""
    found: dict[str, set[str]] = {}
    for file in HERE.parent.rglob("test_*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                for number in re.findall(r"^test_b(\d\d)_", node.name):
                    found.setdefault(f"B{number}", set()).add(file.stem)
    return found


def test_every_fault_of_the_list_has_tests_where_it_says() -> None:
    assert listed() == in_names()


@pytest.mark.slow
def test_the_list_is_the_one_in_the_notes() -> None:
    if not NOTES.exists():
        pytest.skip("shared/notes/faults.md is not here")
    ids = re.findall(r"^### (B\d\d) ", NOTES.read_text(encoding="utf-8"), re.MULTILINE)
    assert listed().keys() | OF_THE_NEXT == set(ids)
