"""`auto` picks CUDA where it can compute, and says why, or why not."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field

import pytest

from engine.backends.choice import Choice, ThisMachine, choose, no_kernels
from engine.errors import UnfitBackend


@dataclass
class Machine:
    """A machine that lacks what it is told to lack, and notes what it was asked."""

    device: str | None = None
    lacks: dict[str, str] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def no_device(self) -> str | None:
        self.asked.append("device")
        return self.device

    def device_name(self) -> str:
        return "an H200"

    def not_importable(self, module: str) -> str | None:
        self.asked.append(module)
        return self.lacks.get(module)


def test_a_device_and_flashinfer_make_it_cuda() -> None:
    machine = Machine()
    chosen = choose("auto", machine=machine)
    reason = "torch sees an H200, and FlashInfer imports"
    assert chosen == Choice("cuda", reason, "flashinfer")
    assert choose("cuda", machine=machine) == chosen
    assert "triton" not in machine.asked


def test_without_flashinfer_triton_attends_and_the_reason_says_what_was_missing() -> None:
    chosen = choose("auto", machine=Machine(lacks={"flashinfer": "no FlashInfer is installed"}))
    reason = "torch sees an H200, and Triton imports; no FlashInfer is installed"
    assert chosen == Choice("cuda", reason, "triton")


def test_triton_that_is_asked_for_is_taken_without_looking_at_flashinfer() -> None:
    machine = Machine()
    assert choose("auto", "triton", machine=machine).attention == "triton"
    assert "flashinfer" not in machine.asked


def test_without_a_device_nothing_else_is_looked_at() -> None:
    machine = Machine(device="torch sees no CUDA device")
    assert choose("auto", machine=machine) == Choice("cpu", "torch sees no CUDA device")
    assert machine.asked == ["device"]


def test_a_device_that_nothing_attends_on_leaves_it_to_the_cpu() -> None:
    machine = Machine(lacks={"flashinfer": "no FlashInfer is installed", "triton": "no Triton"})
    chosen = choose("auto", machine=machine)
    assert chosen.backend == "cpu"
    reason = "torch sees an H200, but no FlashInfer is installed and no Triton"
    assert chosen.reason == reason


@pytest.mark.parametrize("wanted", ["cpu", "simulated"])
def test_what_is_asked_for_is_taken_without_looking_at_the_machine(wanted: str) -> None:
    machine = Machine()
    assert choose(wanted, machine=machine) == Choice(wanted, "engine.backend says so")
    assert machine.asked == []


def test_auto_is_the_cpu_where_something_is_asked_for_that_only_a_cpu_does() -> None:
    machine = Machine()
    chosen = choose("auto", for_cpus="model.dtype = int8 is for CPUs", machine=machine)
    assert chosen == Choice("cpu", "model.dtype = int8 is for CPUs")
    assert machine.asked == []


def test_cuda_that_is_asked_for_and_cannot_be_had_names_knob_cause_and_remedy() -> None:
    with pytest.raises(UnfitBackend) as caught:
        choose("cuda", machine=Machine(device="torch sees no CUDA device"))
    assert caught.value.knob == "backend"
    says = "cuda cannot be had: torch sees no CUDA device; write auto or cpu to compute without it"
    assert str(caught.value) == says


@pytest.mark.parametrize(("attention", "knob"), [("auto", "backend"), ("triton", "cuda.attention")])
def test_cuda_without_what_attends_names_what_to_install(attention: str, knob: str) -> None:
    lacks = {"flashinfer": "no FlashInfer is installed", "triton": "no Triton is installed"}
    with pytest.raises(UnfitBackend) as caught:
        choose("cuda", attention, machine=Machine(lacks=lacks))
    assert caught.value.knob == knob
    assert str(caught.value).endswith("no Triton is installed; pip install 'octavo[cuda]'")


class TestThisMachine:
    def test_a_module_that_is_not_there_and_one_that_lacks_another_are_told_apart(
        self, tmp_path, monkeypatch
    ) -> None:
        (tmp_path / "lacking_another.py").write_text("import no_such_module_at_all")
        monkeypatch.syspath_prepend(tmp_path)
        told = ThisMachine().not_importable
        assert told("no_such_module") == "no no_such_module is installed"
        assert told("lacking_another") == "lacking_another needs no_such_module_at_all"
        assert told("json") is None

    def test_whatever_a_module_raises_is_a_reason_of_one_line(self, tmp_path, monkeypatch) -> None:
        (tmp_path / "raising.py").write_text("raise OSError('read-only\\nfile system')")
        monkeypatch.syspath_prepend(tmp_path)
        told = ThisMachine().not_importable("raising")
        assert told == "raising does not import: OSError: read-only"

    @pytest.mark.parametrize(
        ("given", "expected"),
        [
            ("nothing", "FlashInfer has neither prebuilt kernels nor nvcc to compile them with"),
            ("CUDA_HOME", None),
            ("PATH", None),
            ("aot", None),
            (
                "FLASHINFER_DISABLE_JIT",
                "FlashInfer has no prebuilt kernels, and FLASHINFER_DISABLE_JIT is set",
            ),
        ],
    )
    def test_flashinfer_needs_kernels_or_what_compiles_them(
        self, tmp_path, monkeypatch, given: str, expected: str | None
    ) -> None:
        for name in ("flashinfer/__init__.py", "flashinfer/data/aot/x/x.so", "home/bin/nvcc"):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).touch(0o755)
        if given != "aot":
            (tmp_path / "flashinfer/data/aot/x/x.so").unlink()
        monkeypatch.delitem(sys.modules, "flashinfer", raising=False)
        monkeypatch.syspath_prepend(tmp_path)
        environ = {"CUDA_HOME": str(tmp_path), "PATH": str(tmp_path)}
        home = {"CUDA_HOME": tmp_path / "home", "PATH": tmp_path / "home/bin"}
        environ |= {given: str(home.get(given, "1"))}
        assert no_kernels(environ) == expected
        del sys.modules["flashinfer"]

    def test_without_a_driver_torch_is_not_imported(self) -> None:
        script = (
            "import sys, engine.backends.choice as choice;"
            "choice._loads = lambda library: False; sys.platform = 'linux';"
            "print(choice.choose('auto').reason);"
            "sys.exit(bool({'torch', 'flashinfer', 'triton'} & set(sys.modules)))"
        )
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == "there is no NVIDIA driver here (libcuda.so.1)\n"
