"""What `octavo bench` found, as tables for people. `report` is always what `--json` prints."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rich.table import Table

from loadtest import allocation_bench
from loadtest.allocation_bench import POOL_TOKENS, PROFILE, Usage
from loadtest.host_bench import ROWS
from loadtest.queue_bench import Added, growth
from loadtest.scrape_bench import NAMES, RUNNING


def caption(report: dict[str, Any]) -> str:
    processor, version = report["cpu"], report["versions"]
    machine = f"{processor['model']}, {processor['cores']} cores"
    return f"{machine}, octavo {version['octavo']}, Python {version['python']}"


def model_table(report: dict[str, Any]) -> Table:
    """Rates by how many sequences there are at once, for both mixes."""
    reached = report["roofline"]["reached"]
    table = Table(
        title=f"{report['model']}, {report['dtype']}, KV {report['kv_dtype']},"
        f" {report['threads']} threads, {report['native'] or 'torch'}",
        caption="reached: of what this machine could do, which reads"
        f" {report['roofline']['read_gb_s']:,.1f} GB/s and computes"
        f" {report['roofline']['int8_gops']:,.0f} G int8 operations a second",
    )
    for name in ("", "sequences", "tokens/s", "step", "reached"):
        table.add_column(name, justify="right" if name else "left")
    for name, found, floor in (
        ("short", report, reached),
        ("long", report["long"], reached and reached["long"]),
    ):
        share = _percent(floor and floor["prefill"])
        table.add_row(f"{name} prompts", "", f"{found['prefill_tok_s']:,.0f}", "", share)
        for number, rate in found["decode_tok_s"].items():
            share = _percent(floor and floor["decode"][number])
            step = ms(found["step_ms"][number])
            table.add_row(f"{name} decode", number, f"{rate:,.0f}", step, share)
    return table


def share_table(report: dict[str, Any]) -> Table:
    """Where a step goes."""
    rows = max(report["step_ms"], key=int)
    table = Table(title=f"Where a step of {rows} decoding sequences goes")
    table.add_column("part")
    table.add_column("share", justify="right")
    for name, share in report["share"].items():
        table.add_row(name, "not measured" if share is None else f"{share:.1%}")
    return table


def clients_table(report: dict[str, Any]) -> Table:
    """What streaming costs a step."""
    clients = report["clients"]
    table = Table(title=f"A step of {clients['clients']} rows in a server")
    table.add_column("")
    table.add_column("step", justify="right")
    table.add_row("nobody listens", ms(clients["alone_ms"]))
    table.add_row(f"{clients['clients']} clients stream", ms(clients["beside_ms"]))
    table.add_row("times as long (goal: < 1.15)", f"{report['beside_clients_ratio']:.2f}")
    return table


def host_table(report: dict[str, Any]) -> Table:
    """The engine's own work."""
    table = Table(title=f"Host path at {ROWS} rows")
    table.add_column("median of rounds, CPU time")
    table.add_column("measured", justify="right")
    table.add_column("goal", justify="right")
    table.add_row("schedule + land", ms(report["scheduler_step_ms"]), "≤ 0.3 ms")
    table.add_row("the whole step, hand-over included", ms(report["host_step_ms"]), "< 1 ms")
    table.add_row("rows a second, simulated", f"{report['rows_per_s']:,.0f}", "≥ 150,000")
    churn = f"{report['churn_rows_per_s']:,.0f}"
    table.add_row("rows a second, short requests coming and going", churn, "")
    for number, milliseconds in report["waiting_ms"].items():
        table.add_row(f"schedule with {int(number):,} waiting", ms(milliseconds), "")
    layer = report["block_layer"]
    table.add_row("block layer, requests a second", f"{layer['requests_per_s']:,.0f}", "")
    table.add_row("block layer, blocks a second", f"{layer['blocks_per_s']:,.0f}", "")
    scraped = f"a scrape of /metrics, {RUNNING} running"
    table.add_row(scraped, ms(report["scrape_ms"]), "< 5 ms")
    table.add_row(f"the same with {NAMES} tenants", ms(report["scrape_names_ms"]), "< 5 ms")
    return table


def queue_table(queues: Mapping[str, Mapping[str, Mapping[int, Added]]]) -> Table:
    """A row for each policy and shape of the crowd, a column for each number that waits."""
    table = Table(
        title=f"What waiting requests add to a step at {ROWS} rows, ms (goal: < 0.5)",
        caption="CPU time with an arrival, an end and an admission in each step, less that of FCFS"
        " with nobody else waiting",
    )
    table.add_column("policy")
    table.add_column("they wait")
    sizes = next(iter(next(iter(queues.values())).values()))
    for size in sizes:
        table.add_column(f"{size:,}", justify="right")
    table.add_column("growth", justify="right")
    for name, by_shape in queues.items():
        for shape, by_size in by_shape.items():
            cells = (f"{1e3 * added.median:.3f}" for added in by_size.values())
            table.add_row(name, shape, *cells, f"{1e3 * growth(by_size):+.3f}")
    return table


def allocation_table(usages: Mapping[str, Usage]) -> Table:
    """One column for each allocation."""
    table = Table(
        title="KV blocks paged, and reserved for the longest answer",
        caption=f"{allocation_bench.REQUESTS} requests over {POOL_TOKENS:,} tokens of KV, "
        f"profile {PROFILE}",
    )
    table.add_column("means over virtual time")
    for name in usages:
        table.add_column(name, justify="right")
    rows: list[tuple[str, Callable[[Usage], str]]] = [
        ("requests that run at once", lambda usage: f"{usage.running:.1f}"),
        ("output tokens a second", lambda usage: f"{usage.output_tok_s:,.0f}"),
        ("held, tokens", lambda usage: f"{usage.held_tokens:,.0f}"),
        ("held and empty, tokens", lambda usage: f"{usage.waste_tokens:,.0f}"),
        ("that is of what is held", lambda usage: f"{usage.waste_fraction:.1%}"),
        ("empty, tokens a sequence", lambda usage: f"{usage.waste_per_sequence:,.1f}"),
        ("at most", lambda usage: f"{usage.most_waste_per_sequence:,}"),
        ("preemptions", lambda usage: f"{usage.preemptions:,}"),
    ]
    for name, cell in rows:
        table.add_row(name, *map(cell, usages.values()))
    return table


def ms(milliseconds: float) -> str:
    return f"{milliseconds:.3f} ms"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"
