"""Clients run against the HTTP side over a scripted engine, as strangers: over the socket only."""

import pytest
from support.serving import saying, serving

TEXT = "Grüße, 🦙!"


@pytest.fixture
def text():
    """What the server answers to everything."""
    return TEXT


@pytest.fixture
async def house():
    async with serving(script=saying(TEXT)) as house:
        yield house
        await house.idle()
