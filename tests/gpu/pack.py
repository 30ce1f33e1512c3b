"""What travels to a machine with a GPU: sources, FlashInfer without what we never call, kernels.

    python -m tests.gpu.pack [--flashinfer FOLDER] [--python 3.12]      `make pack-gpu`

    octavo-gpu/
      Makefile engine/ policies/ tests/      as they are
      build/gpu/site/                        FlashInfer, tvm-ffi, kernels that were compiled here

There is no network there and little room, so the archive is small, and it has no model: models
there are shapes with random weights.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from importlib.metadata import distributions
from pathlib import Path, PurePosixPath

from tests.gpu.kernels import cuda_home

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build/gpu"
ARCHIVE = "octavo-gpu.tar.xz"
MOST_BYTES = 60 << 20

SOURCES = ("Makefile", "engine", "policies", "tests/gpu", "tests/support", "tests/engine/backends")
MODELS = (".gguf", ".safetensors", ".bin", ".pt", ".pth", ".onnx")

TVM_FFI = "apache-tvm-ffi"
PLATFORMS = ("manylinux2014_x86_64", "manylinux_2_24_x86_64", "manylinux_2_28_x86_64")

PYTHON_ONLY = (
    *("attention", "cute_dsl", "experimental", "fused_moe", "gemm"),
    *("mla", "moe_ep", "msa_ops"),
)
"""Folders of FlashInfer that are imported, and whose other files are for kernels of no use here."""


class Unfit(Exception):
    """An archive that may not travel."""


def travels(path: PurePosixPath) -> bool:
    """Whether a file of FlashInfer is needed to attend, or to compile what attends.

    path: from the package's own folder. Sources right in data/csrc are templates, which are read
    even where kernels are prebuilt; those in folders below are of other kernels.
    """
    parts = path.parts
    if "__pycache__" in parts:
        return False
    if parts[:2] == ("data", "csrc"):
        return len(parts) == 3
    other_kernels = parts[0] in PYTHON_ONLY or parts[0].endswith("_backend")
    return path.suffix == ".py" or not other_kernels


def make_site(flashinfer: Path, kernels: Path, site: Path, python: str) -> None:
    """Fill `site` with what PYTHONPATH is to name.

    flashinfer: a folder that FlashInfer was installed into. kernels: of `tests.gpu.kernels`.
    """
    shutil.rmtree(site, ignore_errors=True)
    package = flashinfer / "flashinfer"
    for file in package.rglob("*"):
        path = file.relative_to(package)
        if file.is_file() and travels(PurePosixPath(path.as_posix())):
            _copy(file, site / "flashinfer" / path)
    for library in kernels.glob("*/*.so"):
        _copy(library, site / "flashinfer/data/aot" / library.relative_to(kernels))
    for file in flashinfer.glob("pynvml.py"):
        _copy(file, site / file.name)
    with zipfile.ZipFile(_tvm_ffi_wheel(flashinfer, python)) as wheel:
        wheel.extractall(site)


def _tvm_ffi_wheel(flashinfer: Path, python: str) -> Path:
    """The wheel of the tvm-ffi that is beside FlashInfer, for the other machine's Python."""
    versions = {each.name: each.version for each in distributions(path=[str(flashinfer)])}
    folder = FOLDER / "wheels" / python
    wanted = f"{TVM_FFI}=={versions[TVM_FFI]}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", wanted]
    command += ["--dest", str(folder), "--only-binary=:all:", "--python-version", python]
    command += [part for each in PLATFORMS for part in ("--platform", each)]
    found = sorted(folder.glob("apache_tvm_ffi-*.whl"))
    if not found:
        subprocess.run(command, check=True)
        found = sorted(folder.glob("apache_tvm_ffi-*.whl"))
    return found[-1]


def compile_kernels(flashinfer: Path, folder: Path) -> None:
    """Compile what `folder` lacks; without nvcc say so, and leave it."""
    if cuda_home() is None:
        print("There is no nvcc here: the other machine compiles its kernels, which takes minutes.")
        return
    environ = os.environ | {"PYTHONPATH": str(flashinfer)}
    command = [sys.executable, "-m", "tests.gpu.kernels", str(folder)]
    subprocess.run(command, check=True, cwd=ROOT, env=environ)


def sources() -> Iterator[Path]:
    """Files under version control that are needed there."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *SOURCES]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    yield from (ROOT / line for line in listed.splitlines())


def write_archive(archive: Path, site: Path) -> None:
    """Put sources and site into an archive, and look at it. Raises Unfit."""
    top = PurePosixPath("octavo-gpu")
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive, "w:xz", preset=6) as tar:
        for file in sources():
            tar.add(file, str(top / file.relative_to(ROOT).as_posix()))
        for file in sorted(site.rglob("*")):
            if file.is_file():
                path = PurePosixPath("build/gpu/site") / file.relative_to(site).as_posix()
                tar.add(file, str(top / path))
    check(archive)


def check(archive: Path) -> None:
    """Raise Unfit if an archive is too large, or holds what looks like a model."""
    size = archive.stat().st_size
    if size >= MOST_BYTES:
        raise Unfit(f"{archive} has {size / 2**20:.1f} MiB, and {MOST_BYTES >> 20} are too many")
    with tarfile.open(archive) as tar:
        models = [name for name in tar.getnames() if name.endswith(MODELS)]
    if models:
        raise Unfit(f"{archive} holds models: {', '.join(models[:3])}")


def _copy(file: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(file, target)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.pack")
    default = ROOT / ".venv/flashinfer/0.7.4"
    parser.add_argument("--flashinfer", type=Path, default=default, help="where it is installed")
    parser.add_argument("--python", default="3.12", help="of the other machine")
    options = parser.parse_args(arguments)
    flashinfer: Path = options.flashinfer.absolute()
    kernels = FOLDER / "kernels" / flashinfer.name
    compile_kernels(flashinfer, kernels)
    make_site(flashinfer, kernels, FOLDER / "site", options.python)
    archive = FOLDER / ARCHIVE
    try:
        write_archive(archive, FOLDER / "site")
    except Unfit as error:
        sys.exit(str(error))
    count = len(list((FOLDER / "site/flashinfer/data/aot").glob("*/*.so")))
    print(f"{archive}: {archive.stat().st_size / 2**20:.1f} MiB, {count} prebuilt kernels")


if __name__ == "__main__":
    main()
