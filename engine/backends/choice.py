"""Which backend computes, and why: what `auto` comes to on this machine.

CUDA is picked where torch sees a device that knows bfloat16 and one of the two that can attend
there, FlashInfer and Triton, imports. What is expensive to look at is looked at last: without
NVIDIA's driver not even torch is imported, and without a device neither of the two.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import shutil
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Protocol

from engine.backends import spin_less
from engine.errors import UnfitBackend

CPU: Final = "cpu"
CUDA: Final = "cuda"
SIMULATED: Final = "simulated"

FLASHINFER: Final = "flashinfer"
TRITON: Final = "triton"
NAMES: Final = {FLASHINFER: "FlashInfer", TRITON: "Triton"}

REMEDY: Final = "pip install 'octavo[cuda]'"

BFLOAT16_FROM: Final = (8, 0)
"""The compute capability from which a GPU multiplies in bfloat16."""


@dataclass(frozen=True, slots=True)
class Choice:
    """backend: cpu, cuda or simulated. reason: a clause that says why. attention: what attends on a
    GPU, flashinfer or triton; None elsewhere."""

    backend: str
    reason: str
    attention: str | None = None


class Machine(Protocol):
    """What is looked at. Each answer is a clause, None where nothing is wrong."""

    def no_device(self) -> str | None:
        """Why there is no GPU to compute on."""
        ...

    def device_name(self) -> str:
        """What the GPU is called. Asked only where there is one."""
        ...

    def not_importable(self, module: str) -> str | None:
        """Why `module` cannot be imported and used. Asked only where there is a GPU; imports it."""
        ...


class ThisMachine:
    """The machine that this process runs on, as torch and the driver's library tell."""

    def no_device(self) -> str | None:
        if sys.platform == "linux" and not _loads("libcuda.so.1"):
            return "there is no NVIDIA driver here (libcuda.so.1)"
        spin_less()
        import torch

        if torch.version.cuda is None:
            built = f"torch {torch.__version__} is built without CUDA"
            return f"{built} (for Linux PyPI has it with CUDA)"
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            if not torch.cuda.is_available():
                return "; ".join(["torch sees no CUDA device", *map(_first_line, said)])
        capability = torch.cuda.get_device_capability()
        if capability < BFLOAT16_FROM:
            what = f"{self.device_name()} (compute capability {capability[0]}.{capability[1]})"
            return f"{what} does not know bfloat16"
        return None

    def device_name(self) -> str:
        import torch

        return str(torch.cuda.get_device_name())

    def not_importable(self, module: str) -> str | None:
        name = NAMES.get(module, module)
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            return (
                f"{name} needs {error.name}" if error.name != module else f"no {name} is installed"
            )
        except Exception as error:  # what another package does at import is anybody's guess
            return f"{name} does not import: {type(error).__name__}: {_first_line(error)}"
        return no_kernels(os.environ) if module == FLASHINFER else None


def choose(
    wanted: str,
    attention: str = "auto",
    *,
    for_cpus: str | None = None,
    machine: Machine | None = None,
) -> Choice:
    """The backend that `engine.backend` means.

    wanted: auto, cpu, cuda or simulated. attention: auto, flashinfer or triton. for_cpus: what was
    asked for that only a CPU does, for `auto`. Raises UnfitBackend if cuda cannot be had where it
    was asked for.
    """
    if wanted == SIMULATED:
        return Choice(SIMULATED, "engine.backend says so")
    if wanted == CPU:
        return Choice(CPU, "engine.backend says so")
    if wanted == "auto" and for_cpus is not None:
        return Choice(CPU, for_cpus)
    try:
        return _cuda(attention, machine or ThisMachine())
    except UnfitBackend as unfit:
        if wanted == CUDA:
            raise
        return Choice(CPU, unfit.reason)


def _cuda(attention: str, machine: Machine) -> Choice:
    """The choice of CUDA; raises UnfitBackend with what is missing."""
    if missing := machine.no_device():
        raise UnfitBackend("backend", missing, "write auto or cpu to compute without it")
    sees = f"torch sees {machine.device_name()}"
    candidates = (FLASHINFER, TRITON) if attention == "auto" else (attention,)
    problems: list[str] = []
    for name in candidates:
        problem = machine.not_importable(name)
        if problem is None:
            return Choice(CUDA, "; ".join([f"{sees}, and {NAMES[name]} imports", *problems]), name)
        problems.append(problem)
    knob = "backend" if attention == "auto" else "cuda.attention"
    raise UnfitBackend(knob, f"{sees}, but {' and '.join(problems)}", REMEDY)


def no_kernels(environ: Mapping[str, str]) -> str | None:
    """Why FlashInfer, which is imported, has no kernels: it compiles them with nvcc when they are
    first needed, unless they were compiled ahead (`flashinfer/jit/env.py`)."""
    folder = importlib.import_module(FLASHINFER).__path__[0]
    if any(Path(folder, "data/aot").glob("*/*.so")) or find_spec("flashinfer_jit_cache"):
        return None
    if environ.get("FLASHINFER_DISABLE_JIT"):
        return "FlashInfer has no prebuilt kernels, and FLASHINFER_DISABLE_JIT is set"
    home = environ.get("CUDA_HOME") or environ.get("CUDA_PATH") or "/usr/local/cuda"
    nvcc = environ.get("FLASHINFER_NVCC") or shutil.which("nvcc", path=environ.get("PATH"))
    if nvcc or Path(home, "bin/nvcc").exists():
        return None
    return "FlashInfer has neither prebuilt kernels nor nvcc to compile them with"


def _loads(library: str) -> bool:
    """Whether the dynamic linker finds a library."""
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def _first_line(said: object) -> str:
    """The first line of an exception or a warning."""
    text = str(said.message if isinstance(said, warnings.WarningMessage) else said)
    return text.strip().partition("\n")[0]
