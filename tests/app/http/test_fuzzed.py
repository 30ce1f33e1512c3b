"""schemathesis on the served OpenAPI document: no error of ours, and nothing leaks."""

import os

import pytest
from support.serving import serving

from app.openapi import openapi
from engine.backends.simulated import SimulatedBackend
from engine.cost import LinearCost

PLAIN = "--exclude-path-regex=^/(health|ping|load|version|metrics)"
"""Routes that take nothing, and so need no luck."""

SECONDS = float(os.environ.get("OCTAVO_FUZZ_S", "45"))
SEED = [] if "OCTAVO_FUZZ_S" in os.environ else ["--seed=1"]
"""The same every time, unless somebody wants to look for something: what CI finds by chance is in
nobody's change."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2 * SECONDS + 400)]


@pytest.fixture(scope="module")
def schemathesis():
    return pytest.importorskip("schemathesis", reason="install the extra `clients`")


def test_the_document_is_valid(schemathesis):
    schemathesis.openapi.from_dict(openapi("0.0.0")).validate()


async def test_whatever_is_sent_is_answered_as_the_document_says(schemathesis, tmp_path):
    from support.fuzzing import fuzz

    backend = SimulatedBackend(LinearCost(), total_blocks=64, wait=lambda seconds: None)
    async with serving(backend=backend, max_open=16, model_len=256) as house:
        options = ["--workers=2", PLAIN, *SEED]
        status, said = await fuzz(house.url, SECONDS, tmp_path, *options)
        assert status == 0, said[-8000:]
        await house.idle()
        assert house.metrics.followed == 0
        assert len(house.service.directory) == 0
        await house.probe()
