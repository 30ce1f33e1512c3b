"""`engine.backend`, dtypes and depth as they are in effect, and what does not go together."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest
from rich.console import Console

from app.compose import compose_engine
from app.computing import settle
from app.config import Config, load_config
from engine.backends import CudaSettings, Progress
from engine.backends.base import Backend
from engine.backends.choice import ThisMachine
from engine.backends.cpu import create
from engine.errors import ConfigurationError, UnfitMemory
from tests.app.test_guessing import write_model


class WithDevice:
    """A machine with a GPU on which everything imports."""

    def no_device(self) -> str | None:
        return None

    def device_name(self) -> str:
        return "an H200"

    def not_importable(self, module: str) -> str | None:
        return None


class WithoutDevice(WithDevice):
    """One without."""

    def no_device(self) -> str | None:
        return "torch sees no CUDA device"


def config(*overrides: str) -> Config:
    return load_config(overrides=overrides)


def refusal(*overrides: str, machine: WithDevice) -> str:
    with pytest.raises(ConfigurationError) as caught:
        settle(config(*overrides), machine)
    return str(caught.value)


def test_on_a_gpu_everything_is_bfloat16_a_step_is_large_and_one_is_ahead() -> None:
    settled, choice = settle(config(), WithDevice())
    assert (choice.backend, choice.attention) == ("cuda", "flashinfer")
    assert (settled.model.dtype, settled.engine.kv_dtype) == ("bfloat16", "bfloat16")
    assert (settled.engine.step_tokens, settled.engine.steps_in_flight) == (2048, 1)


def test_on_a_cpu_everything_is_int8_a_step_is_small_and_none_is_ahead() -> None:
    settled, choice = settle(config(), WithoutDevice())
    assert (choice.backend, choice.attention) == ("cpu", None)
    assert (settled.model.dtype, settled.engine.kv_dtype) == ("int8", "int8")
    assert (settled.engine.step_tokens, settled.engine.steps_in_flight) == (128, 0)


def test_the_kv_cache_is_kept_as_the_weights_are() -> None:
    settled, _ = settle(config("model.dtype=float32"), WithoutDevice())
    assert settled.engine.kv_dtype == "float32"


def test_what_is_said_outdoes_what_is_usual() -> None:
    said = ["engine.depth=0", "engine.max_step_tokens=4096", "engine.kv_dtype=fp8"]
    settled, _ = settle(config(*said), WithDevice())
    assert settled.engine.step_tokens == 4096
    assert settled.engine.steps_in_flight == 0
    assert settled.engine.kv_dtype == "fp8"


@pytest.mark.parametrize("said", ["model.dtype=int8", "engine.kv_dtype=float32"])
def test_a_format_that_only_cpus_know_makes_auto_the_cpu(said: str) -> None:
    _, choice = settle(config(said), WithDevice())
    assert choice.backend == "cpu"
    assert choice.reason == f"{said.replace('=', ' = ')} is for CPUs"


@pytest.mark.parametrize(
    ("machine", "backend", "dtype"),
    [(WithDevice(), "cuda", "bfloat16"), (WithoutDevice(), "cpu", "float32")],
)
def test_processes_that_share_a_model_do_so_in_float32_on_cpus(machine, backend, dtype) -> None:
    settled, choice = settle(config("engine.tensor_parallel=2"), machine)
    found = choice.backend, settled.model.dtype, settled.engine.kv_dtype
    assert found == (backend, dtype, dtype)


def test_settling_twice_changes_nothing() -> None:
    for machine in (WithDevice(), WithoutDevice()):
        once, _ = settle(config(), machine)
        assert settle(once, machine)[0] == once


@pytest.mark.parametrize(
    ("said", "machine", "expected"),
    [
        (
            ["engine.kv_dtype=fp8"],
            WithoutDevice(),
            "engine.kv_dtype: fp8 is not computed on cpu, which engine.backend = auto is here"
            " (torch sees no CUDA device); write auto or int8 or float32 or bfloat16",
        ),
        (
            ["engine.backend=cpu", "model.dtype=bfloat16"],
            WithDevice(),
            "model.dtype: bfloat16 is not computed on cpu, which engine.backend = cpu is here"
            " (engine.backend says so); write auto or int8 or float32",
        ),
        (
            ["engine.backend=cuda", "model.dtype=int8"],
            WithDevice(),
            "model.dtype: int8 is not computed on cuda, which engine.backend = cuda is here"
            " (torch sees an H200, and FlashInfer imports); write auto or bfloat16",
        ),
        (
            ["engine.backend=cuda"],
            WithoutDevice(),
            "engine.backend: cuda cannot be had: torch sees no CUDA device;"
            " write auto or cpu to compute without it",
        ),
    ],
)
def test_what_cannot_be_had_is_named_with_its_key(said, machine, expected) -> None:
    assert refusal(*said, machine=machine) == expected


def test_a_simulated_house_has_no_formats_and_looks_at_no_machine(monkeypatch) -> None:
    monkeypatch.setattr(ThisMachine, "no_device", None)
    settled, choice = settle(config("engine.backend=simulated", "engine.kv_dtype=fp8"))
    assert choice.backend == "simulated"
    assert settled.model.dtype == "auto"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "model", 0)


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> list[CudaSettings]:
    """A GPU whose backend is that of the CPU; filled with what it was told."""
    told: list[CudaSettings] = []

    def stand_in(path: Path, settings: CudaSettings, progress: Progress) -> Backend:
        told.append(settings)
        if settings.kv_memory_bytes == 1:
            raise UnfitMemory("kv_memory", "1 byte is too little")
        progress(0, 3)
        progress(3, 3)
        return create(path, kv_memory_bytes=2**24)

    module = ModuleType("engine.backends.cuda.gpu")
    module.create = stand_in
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for name in ("no_device", "device_name", "not_importable"):
        monkeypatch.setattr(ThisMachine, name, getattr(WithDevice, name))
    return told


def compose(*overrides: str):
    console = Console(force_terminal=True, width=80, record=True)
    core = compose_engine(config(*overrides), console, lambda outputs, look: None)
    core.close()
    return core, console.export_text()


def test_a_house_on_a_gpu_is_composed_of_what_is_configured(model: Path, on_gpu) -> None:
    said = [
        "engine.kv_memory=1MiB",
        "engine.cuda.graphs=[1, 4]",
        "engine.offload_memory=2MiB",
        "engine.cuda.attention=triton",
        "engine.max_rows=5",
        "engine.max_step_tokens=100",
    ]
    core, drawn = compose(f"model.path={model}", *said)
    assert core.choice.backend == "cuda"
    assert core.engine.depth == 1
    assert on_gpu == [
        CudaSettings(
            attention="triton",
            kv_dtype="bfloat16",
            kv_memory_bytes=2**20,
            memory_fraction=0.9,
            graphs=[1, 4],
            offload_memory_bytes=2**21,
            max_step_tokens=256,  # engine.prompt_step_tokens
            max_rows=5,
        )
    ]
    assert "capturing CUDA graphs" in drawn
    assert "3/3" in drawn


def test_too_little_memory_of_a_gpu_names_the_knob(model: Path, on_gpu) -> None:
    with pytest.raises(ConfigurationError, match=r"^engine\.kv_memory: 1 byte is too little$"):
        compose(f"model.path={model}", "engine.kv_memory=1")
