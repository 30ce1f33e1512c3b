"""Does a live switchback find what a simulation predicts? `python -m loadtest.switchback`."""

from pathlib import Path


def server_config() -> Path:
    """The configuration of the server that it is tried on."""
    return Path(__file__).with_name("server.yaml")
