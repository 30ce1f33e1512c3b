"""What `octavo bench --only http` found, as a table for people."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from loadtest.http_bench import GOAL, LAG_GOAL_MS


def http_table(report: dict[str, Any]) -> Table:
    """A row for each rate that was tried, slowest first."""
    reached = report["frames_per_s"]
    said = "no rate was followed" if reached is None else f"{reached:,.0f} frames a second"
    table = Table(
        title=f"{said} to {report['clients']} clients (goal: ≥ {GOAL:,})",
        caption="a frame for each token, and the event loop late by less than"
        f" {LAG_GOAL_MS:g} ms (p99); seconds of a core in a second",
    )
    for name in (
        "frames/s",
        "tokens a frame",
        "late, p50",
        "p99",
        "server",
        "its engine",
        "its event loop",
        "clients",
    ):
        table.add_column(name, justify="right")
    for phase in sorted(report["phases"], key=lambda phase: float(phase["frames_per_s"])):
        cores = [
            f"{phase[name] / phase['seconds']:.2f}"
            for name in ("server_cpu_s", "engine_cpu_s", "loop_cpu_s", "client_cpu_s")
        ]
        table.add_row(
            f"{phase['frames_per_s']:,.0f}",
            f"{phase['tokens_per_frame']:.2f}",
            f"{phase['lag_p50_ms']:.1f} ms",
            f"{phase['lag_p99_ms']:.1f} ms",
            *cores,
            style=None if phase["followed"] else "dim",
        )
    return table
