"""The `llm` command line (https://llm.datasette.io) with a model of ours in its configuration."""

import importlib.util
import os
import sqlite3
import sys
from functools import partial

import pytest
from support.programs import run
from support.serving import MODEL

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not importlib.util.find_spec("llm"), reason="install the extra `clients`"),
]

MODELS = """\
- model_id: octavo
  model_name: {model}
  api_base: {url}/v1
- model_id: octavo-completion
  model_name: {model}
  api_base: {url}/v1
  completion: true
- model_id: octavo-nope
  model_name: nope
  api_base: {url}/v1
"""


@pytest.fixture
def llm(house, tmp_path):
    """Runs the command; gives its exit status, stdout and stderr."""
    (tmp_path / "extra-openai-models.yaml").write_text(MODELS.format(model=MODEL, url=house.url))

    env = {**os.environ, "LLM_USER_PATH": str(tmp_path), "PYTHONIOENCODING": "utf-8"}
    return partial(run, sys.executable, "-m", "llm", env=env)


@pytest.mark.parametrize("options", [(), ("--no-stream",), ("-s", "Obey."), ("-o", "seed", "7")])
async def test_it_answers(llm, text, options):
    status, out, err = await llm("-m", "octavo", *options, "Hello")
    assert (status, out) == (0, text + "\n"), err


async def test_it_goes_on_and_keeps_what_was_used(llm, text, tmp_path):
    await llm("-m", "octavo", "Hello")
    status, out, err = await llm("-c", "-m", "octavo", "And now?")
    assert (status, out) == (0, text + "\n"), err
    rows = sqlite3.connect(tmp_path / "logs.db").execute(
        "select input_tokens, output_tokens from turns order by rowid"
    )
    (first, tokens), (second, _) = rows.fetchall()
    assert tokens == len(text.encode()) + 1
    assert second > first + tokens


async def test_it_completes(llm, text):
    status, out, err = await llm("-m", "octavo-completion", "Hello")
    assert (status, out) == (0, text + "\n"), err


async def test_it_says_what_is_wrong(llm):
    status, _, err = await llm("-m", "octavo-nope", "Hello")
    assert status == 1
    assert "does not exist" in err
