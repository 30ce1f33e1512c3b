"""Every kernel compiles for an H200, as it is launched, into what a multiprocessor of it holds."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")

ROOT = Path(__file__).parents[4]
SHARED_BYTES = 227 << 10
"""Of an H200's multiprocessor, for one program at most."""

VOCABULARIES = 2
"""Sizes that draws are compiled for; the size is a constant of theirs."""

KERNELS = {
    "_rms_norm",
    "_silu_mul",
    "_rotate_and_write",
    "_copy",
    "_attend_share",
    "_merge",
    "_attend_tile",
    "_weigh",
    "_count",
    "_choose",
    "_add",
    "_pick",
}


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What was compiled, in a process of its own: in this one kernels are interpreted."""
    environment = os.environ | {
        "TRITON_CACHE_DIR": str(tmp_path_factory.mktemp("triton")),
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")]),
    }
    environment.pop("TRITON_INTERPRET", None)
    program = ROOT / "tests" / "support" / "compiled_kernels.py"
    done = subprocess.run(
        [sys.executable, program], env=environment, cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
def test_every_kernel_is_compiled(kernels: list[dict[str, Any]]):
    assert {kernel["name"] for kernel in kernels} == KERNELS


@pytest.mark.slow
def test_every_kernel_fits_a_multiprocessor(kernels: list[dict[str, Any]]):
    assert [kernel for kernel in kernels if kernel["shared"] > SHARED_BYTES] == []


@pytest.mark.slow
def test_no_kernel_in_bfloat16_spills(kernels: list[dict[str, Any]]):
    assert [k for k in kernels if k["spilled"] and k["dtypes"][0] == "bfloat16"] == []


@pytest.mark.slow
def test_what_is_long_is_read_in_16_bytes(kernels: list[dict[str, Any]]):
    of_bfloat16 = [kernel for kernel in kernels if kernel["dtypes"] == ["bfloat16", "bfloat16"]]
    assert [kernel for kernel in of_bfloat16 if not kernel["wide"]] == []


@pytest.mark.slow
def test_a_draw_without_filters_needs_no_kernel_that_one_with_all_has_not(
    kernels: list[dict[str, Any]],
):
    for name in ("_weigh", "_add", "_pick"):
        assert [kernel["name"] for kernel in kernels].count(name) == VOCABULARIES
