"""Builds the native library with the machine's C++ compiler: `python -m engine.native.build`.

It is compiled for several instruction sets, one of which is chosen when it is used, and kept beside
this file under a name made from its sources, so that an old one is never taken for the new one.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SOURCES = Path(__file__).parent / "src"
BUILT = Path(__file__).parent / "built"

FLAGS = (
    *("-std=c++17", "-O3", "-fPIC", "-fopenmp"),
    # Nobody reads errno or floating-point exceptions; the order of sums stays as written.
    *("-fno-math-errno", "-fno-trapping-math"),
    *("-Wall", "-Wextra", "-Wno-psabi"),
    # GCC 12 warns of registers that its own intrinsics leave undefined on purpose.
    *("-Wno-uninitialized", "-Wno-maybe-uninitialized"),
)

AVX512 = ("f", "bw", "vl", "dq", "vnni")

AVX512_FLAGS = (*(f"-mavx512{part}" for part in AVX512), "-mfma", "-mprefer-vector-width=512")
AMX_FLAGS = ("-mavx512bf16", "-mamx-tile", "-mamx-int8", "-mamx-bf16")

X86_SETS = {
    "amx": (*AVX512_FLAGS, *AMX_FLAGS),
    "avx512": AVX512_FLAGS,
    "avx2": ("-mavx2", "-mfma"),
    "portable": (),
}
"""Compiler flags of each instruction set, the best one first; one whose flags the compiler does not
know is left out."""


class CannotBuild(Exception):
    """There is no compiler, or it failed: the message says which."""


def instruction_sets() -> dict[str, tuple[str, ...]]:
    """Instruction sets that this kind of processor may have."""
    x86 = platform.machine().lower() in ("x86_64", "amd64")
    return X86_SETS if x86 else {"portable": ()}


def library_path() -> Path:
    """Where the library of the present sources is, or will be."""
    digest = hashlib.sha256()
    for source in sorted(SOURCES.iterdir()):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    digest.update(repr((FLAGS, instruction_sets(), platform.machine())).encode())
    return BUILT / f"octavo-{digest.hexdigest()[:16]}.so"


def find_compiler() -> str | None:
    """The C++ compiler: $CXX, else whatever of the usual names is there."""
    for name in (os.environ.get("CXX"), "g++", "c++", "clang++"):
        if name and shutil.which(name):
            return name
    return None


def build() -> Path:
    """The library, built unless it is there. Raises CannotBuild."""
    path = library_path()
    if path.exists():
        return path
    compiler = find_compiler()
    if compiler is None:
        raise CannotBuild("no C++ compiler was found (g++ or clang++; CXX names another one)")
    sets = {i: flags for i, flags in instruction_sets().items() if _knows(compiler, flags)}
    BUILT.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=BUILT) as folder:
        objects = [Path(folder, f"{isa}.o") for isa in (*sets, "dispatch")]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(_run, _compilations(compiler, sets, objects)))
        linked = Path(folder, "linked.so")
        _run([compiler, "-shared", "-fopenmp", "-o", linked, *objects])
        for old in BUILT.glob("octavo-*.so"):
            old.unlink(missing_ok=True)
        linked.replace(path)
    return path


def _knows(compiler: str, flags: tuple[str, ...]) -> bool:
    command = [compiler, *flags, "-E", "-x", "c++", os.devnull]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _compilations(
    compiler: str, sets: dict[str, tuple[str, ...]], objects: list[Path]
) -> Iterator[list[str | Path]]:
    """One for each set, and one of the dispatcher, which is told of the sets."""
    start: list[str | Path] = [compiler, *FLAGS, "-c"]
    for (isa, flags), made in zip(sets.items(), objects, strict=False):
        yield [*start, *flags, f"-DOCTAVO_ISA={isa}", SOURCES / "isa.cpp", "-o", made]
    told = [f"-DOCTAVO_WITH_{isa.upper()}" for isa in sets]
    yield [*start, *told, SOURCES / "dispatch.cpp", "-o", objects[-1]]


def _run(command: list[str | Path]) -> None:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        lines = result.stderr.strip().splitlines()
        raise CannotBuild("\n".join(["the C++ compiler failed:", *lines[:20]]))


def main() -> int:
    """Build, and say what it costs if that cannot be done; never a reason for set-up to fail."""
    try:
        build()
    except CannotBuild as reason:
        print(
            f"octavo: the native library was not built: {reason}\n"
            "octavo serves all the same, two to six times slower; install a compiler and run "
            "`make setup` again.",
            file=sys.stderr,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
