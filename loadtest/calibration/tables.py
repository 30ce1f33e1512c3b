"""A calibration and its check as tables for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Final

from rich import box
from rich.console import RenderableType
from rich.table import Table

from loadtest.calibration.checking import Prediction
from loadtest.profiles import Observed, Profile

TERMS: Final = {
    "base": "a step",
    "prompt_token": "a prompt token",
    "decode": "a decode",
    "kv_read": "1,000 KV tokens read",
    "chunk_context": "1,000 chunk tokens · context",
}
FIGURES: Final = {
    "capacity_req_s": "capacity",
    "ttft_mean_s": "TTFT mean",
    "itl_p99_s": "ITL p99",
}
_THOUSANDS: Final = ("kv_read", "chunk_context")


def profile_tables(profile: Profile) -> Iterator[RenderableType]:
    """Coefficients, how well they fit, what was seen, and how steps scatter."""
    yield _facts(profile)
    yield _coefficients(profile)
    if profile.residuals:
        yield _residuals(profile)


def _facts(profile: Profile) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_row("profile", f"{profile.name}: {profile.about}")
    if profile.observed:
        for row in _observed(profile.observed):
            grid.add_row(*row)
    if profile.pool_tokens:
        grid.add_row("pool", f"{profile.pool_tokens:,} tokens")
    if lasts := profile.residuals.persistence.share:
        seconds = profile.residuals.persistence.seconds
        grid.add_row("scatter", f"{lasts:.0%} of its variance lasts, for some {seconds:g} s")
    return grid


def _observed(observed: Observed) -> Iterator[tuple[str, str]]:
    yield "steps", f"{observed.steps:,}, {observed.error:.1%} mean error"
    yield (
        "seen",
        (
            f"to {observed.decodes:,} decodes, {observed.prompt_tokens:,} prompt tokens,"
            f" {observed.kv_read:,} KV tokens read"
        ),
    )
    yield "host", f"{1000 * observed.host_s:.2f} ms of a step, in the coefficients"


def _coefficients(profile: Profile) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("takes")
    table.add_column("ms", justify="right")
    for name, words in TERMS.items():
        scale = 1e6 if name in _THOUSANDS else 1e3
        table.add_row(words, f"{scale * getattr(profile.cost, name):.4g}")
    return table


def _residuals(profile: Profile) -> Table:
    kinds = profile.residuals.quantiles
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("actual / predicted")
    for kind in kinds:
        table.add_column(f"{kind} steps", justify="right")
    for level in sorted({level for each in kinds.values() for level in each}):
        cells = (f"{1 + each[level]:.2f}" if level in each else "" for each in kinds.values())
        table.add_row(_level(level), *cells)
    return table


def _level(level: float) -> str:
    return {0.0: "least", 0.5: "median", 1.0: "most"}.get(level, f"p{100 * level:g}")


def check_table(predictions: Sequence[Prediction]) -> Table:
    """Each prediction beside what was measured, in order."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), show_edge=False)
    table.caption = "seconds; capacity in requests a second; measured: median (least-most)"
    table.add_column("figure", no_wrap=True)
    for heading in ("load", "simulated", "measured", "error (of)", ""):
        table.add_column(heading, justify="right", no_wrap=True)
    for each in predictions:
        least, most = min(each.measured), max(each.measured)
        table.add_row(
            FIGURES[each.metric],
            "all" if each.load is None else f"{each.load:g}",
            f"{each.predicted:.3g}",
            f"{median(each.measured):.3g} ({least:.3g}-{most:.3g})",
            f"{each.error:+.1%} ({each.allowed:.0%})",
            "holds" if each.holds else "missed",
        )
    return table
