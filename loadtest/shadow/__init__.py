"""Does the shadow of what is in charge come true on the real model? `python -m loadtest.shadow`."""

from pathlib import Path


def server_config() -> Path:
    """The configuration of the server that it is tried on."""
    return Path(__file__).with_name("server.yaml")
