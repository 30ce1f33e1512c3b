"""Kernels that were compiled ahead are found and loaded by FlashInfer where it may not compile."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu.kernels import ARCHITECTURE, EXPORTS, KERNELS, cuda_home, driver_stand_in

ROOT = Path(__file__).parents[2]
VERSION = "0.7.4"
INSTALLED = ROOT / ".venv/flashinfer" / VERSION
PREBUILT = ROOT / "build/gpu/kernels" / VERSION

LOADS = f"""
import sys
from pathlib import Path
from flashinfer.jit import env
from tests.gpu.kernels import KERNELS

env.FLASHINFER_AOT_DIR = Path(sys.argv[1])
for kernel in KERNELS:
    spec = kernel.spec()
    assert spec.is_aot, spec.name
    module = spec.build_and_load()
    for name in {EXPORTS!r}:
        assert module.get_function(name) is not None, name
    print(spec.name)
"""


@pytest.mark.slow
@pytest.mark.skipif(not INSTALLED.exists(), reason="make test-all installs FlashInfer for this")
@pytest.mark.skipif(not any(PREBUILT.glob("*/*.so")), reason="make pack-gpu compiles them")
def test_flashinfer_takes_what_was_compiled_ahead(tmp_path: Path) -> None:
    home = cuda_home()
    assert home is not None, "kernels are there, so somebody had nvcc"
    libraries = [driver_stand_in(tmp_path).parent, home / "lib"]
    environ = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(INSTALLED), str(ROOT)]),
        "LD_LIBRARY_PATH": os.pathsep.join(map(str, libraries)),
        "FLASHINFER_DISABLE_JIT": "1",
        "FLASHINFER_CUDA_ARCH_LIST": ARCHITECTURE,
        "FLASHINFER_WORKSPACE_BASE": str(tmp_path),
    }
    done = subprocess.run(
        [sys.executable, "-c", LOADS, str(PREBUILT)],
        env=environ,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(done.stdout.split()) == len(KERNELS)
