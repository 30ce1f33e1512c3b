"""A verdict as a table for people."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from loadtest.conformance.invariants import INVARIANTS
from loadtest.conformance.verdict import Line, Verdict


def table(verdict: Verdict) -> Table:
    """A row an invariant: what it says, what came of it, and the first example of that."""
    outcome = "conforms" if verdict.passed else "does not conform"
    table = Table(
        title=f"{verdict.policy} {outcome}",
        caption=f"{verdict.workloads} workloads, {verdict.steps:,} steps, seed {verdict.seed}",
    )
    table.add_column("")
    table.add_column("invariant")
    table.add_column("verdict", no_wrap=True)
    table.add_column("for example", overflow="fold")
    for name, line in verdict.lines.items():
        example = Text(str(line.example)) if line.example else Text("")
        table.add_row(name, INVARIANTS[name], _outcome(line), example)
    return table


def _outcome(line: Line) -> Text:
    """In words; a colour says it again."""
    if not line.passed:
        times = f" {line.failed:,} times" if line.failed > 1 else ""
        return Text(f"FAIL{times}", style="red")
    if line.reported:
        return Text(f"pass ({line.reported:,} reported)", style="green")
    return Text("pass", style="green")
