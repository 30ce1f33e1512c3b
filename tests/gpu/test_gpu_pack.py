"""What travels is small, has what attention needs, and no model."""

from __future__ import annotations

import tarfile
import zipfile
from pathlib import Path, PurePosixPath

import pytest

from tests.gpu import pack
from tests.gpu.pack import Unfit, check, compile_kernels, make_site, sources, travels


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("prefill.py", True),
        ("data/csrc/batch_prefill_customize_config.jinja", True),
        ("data/csrc/nv_internal/gemm.cu", False),
        ("data/csrc/a/b/c.h", False),
        ("data/include/flashinfer/page.cuh", True),
        ("data/cutlass/include/x.h", True),
        ("data/aot/x/x.so", True),
        ("fused_moe/core.py", True),
        ("fused_moe/kernels.so", False),
        ("trtllm_backend/cubin/x.cubin", False),
        ("jit/__pycache__/core.cpython-311.pyc", False),
    ],
)
def test_python_travels_and_so_do_the_sources_of_attention(path: str, expected: bool) -> None:
    assert travels(PurePosixPath(path)) is expected


def write(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)


def test_a_site_has_flashinfer_the_other_pythons_tvm_ffi_and_the_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed, kernels, site = (tmp_path / name for name in ("installed", "kernels", "site"))
    write(installed, "flashinfer/a.py", "flashinfer/gemm/b.so", "tvm_ffi/core.cpython-311.so")
    write(installed, "pynvml.py")
    write(kernels, "one/one.so", "two/two.so", "two/two.partial")
    write(site, "left/over")
    wheel = tmp_path / "tvm.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("tvm_ffi/core.cpython-312.so", "")
    monkeypatch.setattr(pack, "_tvm_ffi_wheel", lambda flashinfer, python: wheel)
    make_site(installed, kernels, site, "3.12")
    assert {file.relative_to(site).as_posix() for file in site.rglob("*") if file.is_file()} == {
        "flashinfer/a.py",
        "flashinfer/data/aot/one/one.so",
        "flashinfer/data/aot/two/two.so",
        "pynvml.py",
        "tvm_ffi/core.cpython-312.so",
    }


def archive(folder: Path, *names: str) -> Path:
    write(folder, *names)
    path = folder / "archive.tar.xz"
    with tarfile.open(path, "w:xz") as tar:
        for name in names:
            tar.add(folder / name, f"octavo-gpu/{name}")
    return path


def test_an_archive_with_a_model_may_not_travel(tmp_path: Path) -> None:
    check(archive(tmp_path, "engine/batch.py"))
    with pytest.raises(Unfit, match=r"holds models: octavo-gpu/models/x\.gguf"):
        check(archive(tmp_path, "engine/batch.py", "models/x.gguf"))


def test_an_archive_that_is_too_large_may_not_travel(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(pack, "MOST_BYTES", 100)
    with pytest.raises(Unfit, match="are too many"):
        check(archive(tmp_path, "engine/batch.py"))


def test_what_travels_is_under_version_control_and_is_no_model() -> None:
    if not (pack.ROOT / ".git").exists():
        pytest.skip("not a checkout: nobody knows which files belong to it")
    names = {file.relative_to(pack.ROOT).as_posix() for file in sources()}
    assert {"Makefile", "engine/batch.py", "policies/fcfs.py", "tests/gpu/__main__.py"} <= names
    assert "tests/engine/backends/batches.py" in names
    assert not [name for name in names if name.endswith(pack.MODELS)]
    assert not [name for name in names if name.startswith(("app/", "loadtest/", "models/"))]


def test_without_nvcc_nothing_is_compiled_and_a_line_says_so(
    tmp_path: Path, monkeypatch, capsys
) -> None:
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    compile_kernels(tmp_path, tmp_path / "kernels")
    assert capsys.readouterr().out.startswith("There is no nvcc here")
    assert not (tmp_path / "kernels").exists()
