"""The Vercel AI SDK, from npm, under Node."""

import asyncio
import json
import shutil
from pathlib import Path

import pytest
from support.programs import run
from support.serving import MODEL

SCRIPT = Path(__file__).with_name("ai_sdk.mjs")
PACKAGES = ["ai@6.0.325", "@ai-sdk/openai-compatible@2.0.92"]
NPM = ["npm", "install", "--no-audit", "--no-fund", "--fetch-retries=1", "--fetch-timeout=30000"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not shutil.which("npm"), reason="npm is not here"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the script and the packages that it needs."""
    folder = tmp_path_factory.mktemp("node")
    (folder / "package.json").write_text('{"private": true, "type": "module"}')
    (folder / SCRIPT.name).write_text(SCRIPT.read_text())
    install = asyncio.wait_for(run(*NPM, *PACKAGES, folder=folder), 200)
    try:
        status, _, said = asyncio.run(install)
    except TimeoutError:
        pytest.skip("npm cannot reach the packages in time")
    if status:
        pytest.skip(f"npm cannot install the packages: {said[-300:]}")
    return folder


async def test_it_generates_streams_and_is_refused(house, text, folder):
    status, out, err = await run("node", SCRIPT.name, house.url, MODEL, folder=folder)
    assert status == 0, err[-4000:]
    seen = json.loads(out)
    tokens = len(text.encode()) + 1

    assert seen["whole"]["text"] == seen["streamed"]["text"] == text
    assert seen["whole"]["reason"] == seen["streamed"]["reason"] == "stop"
    assert seen["whole"]["usage"]["outputTokens"] == tokens
    assert seen["streamed"]["usage"]["outputTokens"] == tokens
    assert seen["streamed"]["deltas"] > 1
    assert seen["cut"] == {"text": text[:1] + "r", "reason": "length"}
    assert seen["completion"]["text"] == text
    assert seen["refused"]["status"] == 404
    assert "does not exist" in seen["refused"]["message"]
    assert not seen["refused"]["retry"]
