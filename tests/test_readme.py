"""What README says is what is there."""

import re

import pytest
from support.tree import BEGIN, END, ROOT, TOP_LEVEL, files, render

if not (ROOT / ".git").exists():
    pytest.skip("not a checkout: nobody knows which files belong to it", allow_module_level=True)

README = (ROOT / "README.md").read_text()


def test_the_tree_in_readme_is_the_tree() -> None:
    tree = README.split(BEGIN)[1].split(END)[0]
    assert tree == render(), "run `python tests/support/tree.py`"


def test_every_file_of_the_house_says_what_it_is() -> None:
    silent = [line for line in render().splitlines() if len(line.split()) < 2]
    assert silent == []


def test_every_top_level_file_is_in_the_tree() -> None:
    top = {path for path in files() if "/" not in path} | {".ci/run"}
    assert top - {".gitignore", "README.md"} == set(TOP_LEVEL)


def test_the_two_commands_come_first() -> None:
    first_block = re.search(r"```\n(.*?)```", README, re.DOTALL)[1]
    commands = [line.split("#")[0].strip() for line in first_block.splitlines()]
    assert commands == ["make serve", "make test"]


@pytest.mark.parametrize("target", sorted(set(re.findall(r"`make ([a-z-]+)`", README))))
def test_make_targets_that_readme_names_exist(target: str) -> None:
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
