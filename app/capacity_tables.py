"""Capacity as tables for people."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from engine.capacity import Capacity, Device, Held, ModelShape, Pool, Weights


def tables(answer: Capacity) -> Iterator[RenderableType]:
    """What is known, from facts to who fits. Empty lines between them are the tables' own."""
    yield _facts(answer)
    if answer.total:
        yield _requests(answer.requests, answer.total)
        yield from _waste(answer, answer.total)
    if answer.pool and answer.pool.blocks:
        yield _fits(answer.pool)
        yield from _reserving(answer.maximum, answer.pool.reserving)


def binary(size: int) -> str:
    """Bytes in the largest binary unit that leaves at least one, with at most two decimals."""
    number, unit = float(size), "bytes"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if number < 1024:
            break
        number, unit = number / 1024, larger
    return f"{_short(number)} {unit}"


def _short(number: float) -> str:
    """At most two decimals, and none that says nothing."""
    return f"{number:,.2f}".rstrip("0").rstrip(".")


# ── facts ─────────────────────────────────────────────────────────────────────────────────────


def _facts(answer: Capacity) -> Table:
    grid = Table.grid(padding=(0, 2))
    for name, says in _lines(answer):
        grid.add_row(name, says)
    return grid


def _lines(answer: Capacity) -> Iterator[tuple[str, str]]:
    yield "model", _model(answer.model)
    yield (
        "KV cache",
        (
            f"{answer.bytes_per_token:,} bytes a token in {answer.kv_dtype}, "
            f"{binary(answer.bytes_per_block)} a block of {answer.block_tokens}"
        ),
    )
    if answer.model.params and answer.weights:
        yield "weights", _weights(answer.model.params, answer.weights)
    elif answer.device:
        yield "weights", "unknown: --params COUNT says how many parameters there are"
    if answer.device:
        yield answer.device.name, _device(answer.device)
    if answer.device and answer.device.measured:
        yield "", f"estimates, {answer.device.source}"
    if answer.decode:
        yield "decode floor", f"{_ms(answer.decode.floor_s)} a step to read the weights"
        if answer.decode.live_floor_s is not None:
            yield "", f"{_ms(answer.decode.live_floor_s)} with the KV of the live requests"
        yield "compute-bound", f"from about {answer.decode.compute_bound_from:,.0f} sequences"
    if answer.pool:
        yield "KV memory", _pool(answer.pool)


def _model(model: ModelShape) -> str:
    shape = f"{model.layers} layers, {model.kv_heads} KV heads of {model.head_dim}"
    return f"{model.name}: {shape}" if model.name else shape


def _weights(params: int, weights: Weights) -> str:
    count = f"{params / 1e9:.2f} billion" if params >= 1e9 else f"{params / 1e6:.1f} million"
    return f"{weights.bytes / 1e9:,.1f} GB: {count} parameters in {weights.dtype}"


def _device(device: Device) -> str:
    flops = f"{device.flops_per_s / 1e9:,.0f} GFLOP/s"
    if device.flops_per_s >= 1e12:
        flops = f"{device.flops_per_s / 1e12:,.0f} TFLOP/s"
    return f"{binary(device.memory_bytes)}, {device.bytes_per_s / 1e9:,.0f} GB/s, {flops}"


def _pool(pool: Pool) -> str:
    if not pool.blocks:
        return "nothing: the weights take all of the memory"
    return f"{binary(pool.bytes)}: {pool.blocks:,} blocks, {pool.tokens:,} tokens"


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:,.1f} ms"


# ── requests ──────────────────────────────────────────────────────────────────────────────────


def _requests(requests: tuple[Held, ...], total: Held) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_footer=True)
    for heading, footer in zip(
        ("tokens", "blocks", "allocated", "live", "tail"), _row(total), strict=True
    ):
        table.add_column(heading, footer, justify="right")
    for request in requests:
        table.add_row(*_row(request))
    return table


def _row(held: Held) -> tuple[str, ...]:
    sizes = held.allocated_bytes, held.live_bytes, held.tail_bytes
    return f"{held.tokens:,}", f"{held.blocks:,}", *map(binary, sizes)


def _waste(answer: Capacity, total: Held) -> Iterator[Text]:
    """What paging wastes, and what reserving the maximum would."""
    yield _wasted("paged", total.allocated_bytes, total.tail_bytes)
    if kept := answer.reserved:
        how = f"reserving {kept.tokens:,} tokens a request"
        yield _wasted(how, kept.bytes, kept.wasted_bytes)


def _wasted(how: str, taken: int, wasted: int) -> Text:
    return Text(f"{how}: {binary(taken)}, {binary(wasted)} of them wasted ({wasted / taken:.1%})")


# ── who fits ──────────────────────────────────────────────────────────────────────────────────


def _fits(pool: Pool) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("tokens each", "blocks each", "requests that fit"):
        table.add_column(heading, justify="right")
    for fit in pool.fits:
        table.add_row(f"{fit.tokens:,}", f"{fit.blocks:,}", f"{fit.requests:,}")
    return table


def _reserving(maximum: int | None, requests: int | None) -> Iterator[Text]:
    if maximum is not None:
        yield Text(f"reserving {maximum:,} tokens a request: {requests:,} fit")
