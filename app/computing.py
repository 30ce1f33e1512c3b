"""Where tokens are computed and in what formats, once every `auto` is settled."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from app.config import Config
from app.problems import BadConfiguration, Problem, refuse
from engine.backends import CudaSettings
from engine.backends.choice import CPU, CUDA, Choice, Machine, choose
from engine.errors import UnfitBackend


@dataclass(frozen=True, slots=True)
class Formats:
    """What a backend computes with: dtypes of the weights, the usual one first, and of the KV."""

    weights: tuple[str, ...]
    kv: tuple[str, ...]


FORMATS: Final = {
    CPU: Formats(("int8", "float32"), ("int8", "float32", "bfloat16")),
    CUDA: Formats(("bfloat16",), ("bfloat16", "fp8")),
}

SHARED_DTYPE: Final = "float32"
"""Of weights that several processes share on CPUs."""


def settle(config: Config, machine: Machine | None = None) -> tuple[Config, Choice]:
    """The configuration with backend, dtypes and depth as they will be, and why this backend.

    machine: what is looked at, where engine.backend is auto or cuda; None for this one. Raises
    ConfigurationError where the backend cannot be had, or does not know a format.
    """
    engine = config.engine
    try:
        choice = choose(
            engine.backend, engine.cuda.attention, for_cpus=_for_cpus(config), machine=machine
        )
    except UnfitBackend as unfit:
        raise BadConfiguration(Problem(f"engine.{unfit.knob}", str(unfit))) from unfit
    refuse(list(_unknown_formats(config, choice)))
    return _settled(config, choice.backend), choice


def cuda_settings(config: Config, choice: Choice) -> CudaSettings:
    """What the CUDA backend is told."""
    engine = config.engine
    assert choice.attention is not None, "a GPU was chosen together with what attends on it"
    return CudaSettings(
        attention=choice.attention,
        kv_dtype=engine.kv_dtype,
        kv_memory_bytes=None if engine.kv_memory == "auto" else engine.kv_memory,
        memory_fraction=engine.cuda.memory_fraction,
        graphs=engine.cuda.graphs,
        offload_memory_bytes=offload_memory(config),
        max_step_tokens=max(engine.step_tokens, engine.prompt_step_tokens or 0),
        max_rows=engine.max_rows,
    )


def offload_memory(config: Config) -> int:
    """Bytes of host memory for blocks that are put away."""
    return config.engine.offload_memory if "offload" in config.engine.relief else 0


def _for_cpus(config: Config) -> str | None:
    """What is asked for that only a CPU does, so that `auto` need not look for a GPU."""
    cpu, cuda = FORMATS[CPU], FORMATS[CUDA]
    model, engine = config.model, config.engine
    for key, wanted, here, there in (
        ("model.dtype", model.dtype, cpu.weights, cuda.weights),
        ("engine.kv_dtype", engine.kv_dtype, cpu.kv, cuda.kv),
    ):
        if wanted in here and wanted not in there:
            return f"{key} = {wanted} is for CPUs"
    return None


def _unknown_formats(config: Config, choice: Choice) -> Iterator[Problem]:
    """Formats that the backend does not compute with."""
    if choice.backend not in FORMATS:
        return
    formats = FORMATS[choice.backend]
    for key, wanted, known in (
        ("model.dtype", config.model.dtype, formats.weights),
        ("engine.kv_dtype", config.engine.kv_dtype, formats.kv),
    ):
        if wanted not in ("auto", *known):
            yield Problem(
                key,
                f"{wanted} is not computed on {choice.backend}, which engine.backend ="
                f" {config.engine.backend} is here ({choice.reason}); write auto or"
                f" {' or '.join(known)}",
            )


def _settled(config: Config, backend: str) -> Config:
    """The configuration with this backend, and in place of each `auto` what it is there."""
    model, engine = config.model, config.engine
    dtype: str = model.dtype
    kv_dtype: str = engine.kv_dtype
    if dtype == "auto" and backend == CPU and engine.tensor_parallel > 1:
        dtype = SHARED_DTYPE
    elif dtype == "auto" and backend in FORMATS:
        dtype = FORMATS[backend].weights[0]
    if kv_dtype == "auto" and backend in FORMATS:
        kv_dtype = dtype
    of_engine = engine.model_copy(update={"backend": backend, "kv_dtype": kv_dtype})
    parts = {"model": model.model_copy(update={"dtype": dtype}), "engine": of_engine}
    return config.model_copy(update=parts)
