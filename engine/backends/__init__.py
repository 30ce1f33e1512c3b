"""Where tokens are computed: real models, and the scripted and simulated stand-ins.

Each backend's module is imported only when it is asked for, so that nobody loads torch who does
not compute with it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from engine.backends.base import Backend, StepTimes
from engine.capacity import Roofline

if TYPE_CHECKING:
    from engine.backends.parallel.computer import Computer
    from engine.backends.parallel.follower import Follower
    from engine.backends.parallel.followers import Followers
    from engine.backends.parallel.place import Place
    from engine.backends.parallel.wanted import Wanted

SPINS = 20_000
"""How often an idle thread of the OpenMP pool looks for work before it sleeps: about a millisecond,
the time between two steps. libgomp's own 300,000 would keep the event loop from its core."""


Progress = Callable[[int, int], None]
"""Told how many of how many parts of a long preparation are done."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A backend that holds a model.

    context_length: tokens it was trained for. threads: that compute a step; None where nothing is
    computed. native: the instruction set of the native library, None where it does not compute.
    times: where the last step's time went, None where nobody measures it. followers: the other
    processes that compute each step, None where there are none.
    """

    backend: Backend
    context_length: int
    vocab_size: int
    threads: int | None = None
    native: str | None = None
    times: Callable[[], StepTimes] | None = None
    followers: Followers | None = None


def load_on_cpu(
    path: Path,
    *,
    dtype: str = "float32",
    calibration: Sequence[int] = (),
    folder: Path | None = None,
    kv_memory_bytes: int | None = None,
    kv_dtype: str | None = None,
    offload_memory_bytes: int = 0,
    threads: int | None = None,
    weight_bits: int | None = None,
) -> LoadedModel:
    """Load a model onto the CPU backend; see `engine.backends.cpu.create`.

    calibration: a short text as token ids, for dtype int8; folder: where int8 weights are kept;
    weight_bits: how many they keep, 8 or 7; None for what products are exact with.
    """
    spin_less()

    from engine.backends.cpu import create
    from engine.backends.quantised_files import Calibration
    from engine.models.files import read_config

    config = read_config(path)
    backend = create(
        path,
        dtype=dtype,
        calibration=Calibration(calibration, folder, weight_bits),
        kv_memory_bytes=kv_memory_bytes,
        kv_dtype=kv_dtype,
        offload_memory_bytes=offload_memory_bytes,
        threads=threads,
    )
    runner = backend.runner
    return LoadedModel(
        backend,
        config.context_length,
        config.vocab,
        threads=runner.threads,
        native=runner.native,
        times=runner.times if runner.native else None,
    )


@dataclass(frozen=True, slots=True)
class CudaSettings:
    """How a model is computed on a GPU.

    attention: flashinfer or triton. kv_dtype: bfloat16 or fp8. kv_memory_bytes: of the KV cache;
    None for `memory_fraction` of what weights and the largest step leave. graphs: whether steps of
    decodes are captured as graphs, or for how many rows each. max_step_tokens, max_rows: the
    largest step.
    """

    attention: str = "flashinfer"
    kv_dtype: str = "bfloat16"
    kv_memory_bytes: int | None = None
    memory_fraction: float = 0.9
    graphs: bool | Sequence[int] = True
    offload_memory_bytes: int = 0
    max_step_tokens: int = 2048
    max_rows: int = 64


def load_on_cuda(path: Path, settings: CudaSettings, progress: Progress) -> LoadedModel:
    """Load a model onto the current GPU in bfloat16; see `engine.backends.cuda.gpu.create`.

    progress: hears of the graphs that are captured. Raises ConfigurationError where the model or
    the GPU does not fit.
    """
    from engine.backends.cuda.gpu import create
    from engine.models.files import read_config

    config = read_config(path)
    backend = create(path, settings, progress)
    return LoadedModel(backend, config.context_length, config.vocab)


def lead(
    place: Place,
    wanted: Wanted,
    cuda: CudaSettings | None = None,
    progress: Progress | None = None,
) -> LoadedModel:
    """Load a model onto several processes, of which this is rank 0; see `parallel.loading`.

    cuda: None where they compute on CPUs. progress: as of `load_on_cuda`.
    """
    spin_less()
    from engine.backends.parallel import loading

    led = loading.lead(place, wanted, _computer(place, cuda, progress))
    context_length, vocab = led.config.context_length, led.config.vocab
    return LoadedModel(
        led.backend, context_length, vocab, threads=led.threads, followers=led.followers
    )


def follow(place: Place, wanted: Wanted, cuda: CudaSettings | None = None) -> Follower:
    """Load another rank's shard, ready to follow rank 0; see `parallel.loading`."""
    spin_less()
    from engine.backends.parallel import loading

    return loading.follow(place, wanted, _computer(place, cuda, None))


def _computer(place: Place, cuda: CudaSettings | None, progress: Progress | None) -> Computer:
    """What a rank computes with. Raises UnfitBackend if it has no GPU of its own."""
    if cuda is not None:
        from engine.backends.parallel.device_ranks import on_own_gpu

        return on_own_gpu(place, cuda, progress)
    from engine.backends.parallel.cpu_ranks import CPUComputer

    return CPUComputer()


def int8_weight_bits(path: Path) -> int:
    """How many bits int8 weights of the model at `path` keep on this machine."""
    from engine.backends.quantised_files import exact_bits
    from engine.models.files import read_config
    from engine.native.available import native_library

    return exact_bits(native=native_library(read_config(path)) is not None)


def measure_roofline() -> Roofline:
    """What this machine can do, on the threads that torch has; see `engine.backends.roofline`."""
    spin_less()
    from engine.backends.roofline import measure

    return measure()


def spin_less() -> None:
    """Let idle threads sleep soon, unless the environment has a GOMP_SPINCOUNT.

    It is read when torch is loaded (https://gcc.gnu.org/onlinedocs/libgomp/GOMP_005fSPINCOUNT.html).
    """
    os.environ.setdefault("GOMP_SPINCOUNT", str(SPINS))
