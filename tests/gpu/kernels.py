"""FlashInfer's kernels, compiled ahead of time, so that the machine with the GPU compiles nothing.

    python -m tests.gpu.kernels FOLDER        # with FlashInfer on PYTHONPATH

A module is one shared library for a dtype of queries, a dtype of KV and a head size. FlashInfer
takes it from `flashinfer/data/aot/NAME/NAME.so` before it thinks of compiling (`jit/env.py`): the
library holds machine code for sm_90a and knows nothing of torch or of Python.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ARCHITECTURE = "9.0a"
"""Of H100 and H200, with the instructions that only these have."""

CUDA = Path("/usr/local/cuda-13.0")
"""Where nvcc is looked for, if CUDA_HOME does not say."""

EXPORTS = ("plan", "paged_run", "ragged_run")
"""What FlashInfer looks up in a prefill module; tvm-ffi puts a prefix in front of the names."""


@dataclass(frozen=True, slots=True, order=True)
class Kernel:
    """One module: queries and output in bfloat16, KV in a dtype of torch, both of one head size."""

    head_dim: int
    kv_dtype: str

    def spec(self) -> Any:
        """How FlashInfer compiles and finds what its fa2 wrappers load for this, prefill and decode
        alike. Its own newer versions load a module of another name than `gen_batch_prefill_module`
        makes: one for K and V that lie at equal strides."""
        import torch
        from flashinfer.jit.attention import modules

        make: Callable[..., Any] = getattr(
            modules, "_gen_batch_prefill_primary_module", modules.gen_batch_prefill_module
        )
        queries = torch.bfloat16
        kv, size = getattr(torch, self.kv_dtype), self.head_dim
        plain = (0, False, False, False)  # no rotation, window, soft cap or 16-bit sums
        return make("fa2", queries, kv, queries, torch.int32, size, size, *plain)


KERNELS = (
    Kernel(128, "bfloat16"),
    Kernel(64, "bfloat16"),
    Kernel(128, "float8_e4m3fn"),
    Kernel(64, "float8_e4m3fn"),
)
"""What `tests.gpu` computes with; the first is that of Llama-3.1-8B."""


def cuda_home() -> Path | None:
    """The toolkit's folder, if nvcc is in it."""
    home = Path(os.environ.get("CUDA_HOME", CUDA))
    return home if (home / "bin/nvcc").exists() else None


def environment(home: Path, folder: Path) -> dict[str, str]:
    """What FlashInfer's build reads. `folder` gets its objects, and a stand-in for the driver:
    where there is no GPU there is no libcuda to link with."""
    return {
        "FLASHINFER_CUDA_ARCH_LIST": ARCHITECTURE,
        "FLASHINFER_EXTRA_LDFLAGS": f"-L{driver_stand_in(folder).parent} -L{home / 'lib'}",
        "FLASHINFER_WORKSPACE_BASE": str(folder / "workspace"),
        "CUDA_HOME": str(home),
        "MAX_JOBS": os.environ.get("MAX_JOBS", "2"),
    }


def driver_stand_in(folder: Path) -> Path:
    """A library without symbols that says it is libcuda.so.1."""
    library = folder / "stub/libcuda.so.1"
    if not library.exists():
        library.parent.mkdir(parents=True, exist_ok=True)
        command = ["gcc", "-shared", "-fPIC", "-x", "c", os.devnull]
        subprocess.run([*command, "-Wl,-soname,libcuda.so.1", "-o", library], check=True)
        (library.parent / "libcuda.so").symlink_to(library.name)
    return library


def compile_all(folder: Path) -> Iterator[tuple[Path, bool]]:
    """Compile what `folder` lacks, one module after the other: (library, was it there)."""
    for kernel in KERNELS:
        spec = kernel.spec()
        library = folder / spec.name / f"{spec.name}.so"
        there = library.exists()
        if not there:
            spec.build()
            library.parent.mkdir(parents=True, exist_ok=True)
            partial = library.with_suffix(".partial")
            shutil.copy(spec.jit_library_path, partial)
            partial.rename(library)
        yield library, there


def main(folder: Path) -> None:
    """Fill `folder` with a folder for each module; exit with a message if there is no nvcc."""
    folder = folder.absolute()
    home = cuda_home()
    if home is None:
        sys.exit("nothing is compiled ahead: there is no nvcc (CUDA_HOME names its toolkit)")
    os.environ.update(environment(home, folder.parent / f"{folder.name}-build"))
    for library, there in compile_all(folder):
        size = library.stat().st_size / 2**20
        print(f"{library.name}: {size:.1f} MiB{', was there' if there else ''}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
