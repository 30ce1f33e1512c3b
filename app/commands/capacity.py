"""Compute what a KV cache holds and how fast decoding can be."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeVar

import click
import orjson
from rich.console import Console

from app.capacity_tables import tables
from app.config.sizes import parse_size
from app.model_shapes import file_shape, preset_shape
from app.problems import BadConfiguration, Problem, suggest
from engine.backends.memory import auto_kv_bytes
from engine.capacity import KV_DTYPES, WEIGHT_BYTES, Device, ModelShape, Weights
from engine.capacity import capacity as compute
from engine.machine import this_machine
from engine.presets import GPUS, MODELS

V = TypeVar("V")

_THIS: Final = "this"
_USABLE: Final = 0.9
"""Of a GPU's memory, for weights and KV; the rest is the driver's, activations, and air."""

_COUNT: Final = re.compile(r"([0-9.]+(?:e[0-9]+)?) ?([KMBT]?)", re.IGNORECASE)
_SCALE: Final = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}


def _refused(key: str, message: str) -> BadConfiguration:
    return BadConfiguration(Problem(key, message))


# ── reading options ───────────────────────────────────────────────────────────────────────────


def _read_lengths(_: click.Context, option: click.Parameter, text: str | None) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")] if text is not None else []
    if any(not part.isdecimal() or int(part) < 1 for part in parts):
        message = f"expected numbers of tokens such as 3900,420,70; got {text!r}"
        raise _refused(f"--{option.name}", message)
    return tuple(map(int, parts))


def _read_size(_: click.Context, option: click.Parameter, text: str | None) -> int | None:
    if text is None:
        return None
    size = int(text) if text.isdecimal() else parse_size(text)
    if not isinstance(size, int) or size < 1:
        message = f"expected a number of bytes, or a size such as 512MiB or 2GiB; got {text!r}"
        raise _refused(option.opts[0], message)
    return size


def _read_count(_: click.Context, option: click.Parameter, text: str | None) -> int | None:
    if text is None:
        return None
    match = _COUNT.fullmatch(text)
    try:
        count = round(float(match[1]) * _SCALE[match[2].upper()]) if match else 0
    except (ValueError, OverflowError):
        count = 0
    if count < 1:
        raise _refused(f"--{option.name}", f"expected a count such as 8.03e9 or 8B; got {text!r}")
    return count


def _named(option: str, name: str, known: Mapping[str, V], kind: str) -> V:
    if name not in known:
        hint = suggest(name, known, f"{kind}s")
        raise _refused(option, f"unknown {kind} {name}; {hint}")
    return known[name]


# ── the command ───────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class _Model:
    """The options that say which model is meant."""

    preset: str | None
    path: Path | None
    layers: int | None
    kv_heads: int | None
    head_dim: int | None
    params: int | None

    def shape(self) -> ModelShape:
        given = (self.layers, self.kv_heads, self.head_dim)
        sources = (self.preset, self.path, any(given))
        if sum(map(bool, sources)) != 1:
            what = "--preset, --model, or --layers with --kv-heads and --head-dim"
            raise _refused("", f"say which model, in one way: {what}")
        if self.preset:
            shape = preset_shape(self.preset)
        elif self.path:
            shape = file_shape(self.path)
        else:
            shape = self._in_numbers()
        return replace(shape, params=self.params) if self.params else shape

    def _in_numbers(self) -> ModelShape:
        if not (self.layers and self.kv_heads and self.head_dim):
            raise _refused("", "--layers, --kv-heads and --head-dim go together")
        return ModelShape(None, self.layers, self.kv_heads, self.head_dim)


@click.command()
@click.option("--preset", metavar="NAME", help=f"A known model: {', '.join(MODELS)}.")
@click.option(
    "--model",
    "path",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="A GGUF file, a Hugging Face folder, or a config.json.",
)
@click.option("--layers", type=click.IntRange(1), help="A model in numbers: its layers,")
@click.option("--kv-heads", type=click.IntRange(1), help="its heads of keys and values,")
@click.option("--head-dim", type=click.IntRange(1), help="and the size of a head.")
@click.option(
    "--params",
    callback=_read_count,
    metavar="COUNT",
    help="Parameters, such as 8.03e9 or 8B, where the model does not say.",
)
@click.option(
    "--dtype",
    metavar="DTYPE",
    help=f"Of the KV cache: {', '.join(KV_DTYPES)}; int8 has a float32 scale for the K and the V of"
    " each token and head.  [default: bfloat16; float32 on this machine]",
)
@click.option(
    "--weights",
    "weight_dtype",
    metavar="DTYPE",
    help=f"Of the weights: {', '.join(WEIGHT_BYTES)}."
    "  [default: bfloat16; float32 on this machine]",
)
@click.option(
    "--lengths",
    callback=_read_lengths,
    metavar="N,N,...",
    help="Tokens of the live requests.",
)
@click.option(
    "--reserve",
    type=click.IntRange(1),
    metavar="N",
    help="Compare with reserving N tokens for each request.  [default: the model's context]",
)
@click.option(
    "--gpu", metavar="NAME", help=f"What computes: {', '.join(GPUS)}, or {_THIS}: this machine."
)
@click.option(
    "--this-machine", "gpu", flag_value=_THIS, help="The same as --gpu this: measured, in a second."
)
@click.option(
    "--memory",
    callback=_read_size,
    metavar="SIZE",
    help="For weights and KV together, such as 24GiB.  [default: 90% of the GPU's]",
)
@click.option(
    "--kv-memory",
    callback=_read_size,
    metavar="SIZE",
    help="For the KV cache.  [default: what the weights leave; on this machine as in octavo serve]",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
def capacity(
    dtype: str | None,
    weight_dtype: str | None,
    lengths: tuple[int, ...],
    reserve: int | None,
    gpu: str | None,
    memory: int | None,
    kv_memory: int | None,
    as_json: bool,
    **model: Any,
) -> None:
    """Compute what a KV cache holds, what paging saves, and how fast decoding can be.

    Bytes a token, blocks, live bytes and waste for requests of given lengths; how many requests
    fit; the floor of a decode step (weight bytes / bandwidth), and from how many sequences on a
    step waits for arithmetic instead (peak · bytes a parameter / (2 · bandwidth)).

    \b
    Examples:
      octavo capacity --preset llama-3.1-8b --gpu h200
      octavo capacity --model model.gguf --this-machine
      octavo capacity --preset qwen3-8b --dtype int8 --kv-memory 20GiB --json
      octavo capacity --layers 32 --kv-heads 8 --head-dim 128 --dtype float16 \\
          --lengths 3900,420,2100,70 --reserve 4096
    """
    shape = _Model(**model).shape()
    maximum = _maximum(shape, lengths, reserve)
    device = _device(gpu)
    default = "float32" if device and device.measured else "bfloat16"
    kv_dtype = _named("--dtype", dtype or default, KV_DTYPES, "type")
    weight_dtype = weight_dtype or default
    _named("--weights", weight_dtype, WEIGHT_BYTES, "type")
    weights = Weights.of(shape.params, weight_dtype) if shape.params else None
    answer = compute(
        shape,
        kv_dtype,
        lengths=lengths,
        maximum=maximum,
        device=device,
        weights=weights,
        pool_bytes=_pool_bytes(kv_memory, memory, device, weights),
    )
    if as_json:
        click.echo(orjson.dumps(asdict(answer), option=orjson.OPT_INDENT_2))
    else:
        Console().print(*tables(answer), sep="\n")


def _maximum(shape: ModelShape, lengths: tuple[int, ...], reserve: int | None) -> int | None:
    """Tokens that a request would reserve; no length may be larger."""
    maximum = reserve or shape.context_length
    longest = max(lengths, default=0)
    if maximum is not None and longest > maximum:
        whose = "--reserve" if reserve else "the model's context"
        raise _refused("--lengths", f"{longest} tokens are more than {whose}, {maximum}")
    return maximum


def _device(gpu: str | None) -> Device | None:
    if gpu is None:
        return None
    return this_machine() if gpu == _THIS else _named("--gpu", gpu, GPUS, "GPU")


def _pool_bytes(
    kv_memory: int | None, memory: int | None, device: Device | None, weights: Weights | None
) -> int | None:
    """Bytes for the KV cache; None if nothing says how many. Zero if the weights leave nothing."""
    if kv_memory is not None:
        if memory is not None:
            raise _refused("", "--memory and --kv-memory exclude each other")
        return kv_memory
    if memory is None and device is not None and device.measured:
        return auto_kv_bytes()
    if memory is None and device is not None:
        memory = int(_USABLE * device.memory_bytes)
    if memory is None:
        return None
    if weights is None:
        if device is None:
            raise _refused("--memory", "the weights count too: give --params, or use --kv-memory")
        return None
    return max(0, memory - weights.bytes)
