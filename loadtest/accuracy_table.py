"""What accuracy was measured, as JSON and as a table."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.table import Table

from loadtest.accuracy import BOUNDS, CHUNK, CONTEXT, WINDOWS, Score, Scores
from loadtest.machine import cpu, versions


def report(model: str, scores: Scores, weight_bits: int) -> dict[str, Any]:
    """The scores as JSON: `scores.DOMAIN.WEIGHTS.KV_FORMAT`, and what they are of.

    weight_bits: what int8 weights keep on this machine.
    """
    return {
        "model": model,
        "scores": {domain: _nested(by_format) for domain, by_format in scores.items()},
        "bounds": BOUNDS,
        "weight_bits": weight_bits,
        "tokens": WINDOWS * CONTEXT,
        "context": CONTEXT,
        "chunk": CHUNK,
        "versions": versions(),
        "cpu": cpu(),
    }


def table(model: str, scores: Scores, weight_bits: int) -> Table:
    """A row for each way to keep weights and KV, a column for each domain."""
    processor = cpu()
    bounds = ", ".join(f"{100 * most:g}% with {kv} KV" for kv, most in BOUNDS.items())
    made = Table(
        title=f"Perplexity of {model}, {WINDOWS * CONTEXT:,} tokens a text,"
        f" contexts up to {CONTEXT:,}",
        caption=f"int8 may add {bounds}; its weights keep {weight_bits} bits on this machine"
        f"\n{processor['model']}, {processor['cores']} cores, octavo {versions()['octavo']}",
    )
    made.add_column("weights")
    made.add_column("KV cache")
    for domain in scores:
        made.add_column(domain, justify="right")
        made.add_column("increase", justify="right")
    before = ""
    for weights, kv_dtype in next(iter(scores.values())):
        cells = [cell for each in scores.values() for cell in _cells(each[weights, kv_dtype])]
        made.add_row("" if weights == before else weights, kv_dtype, *cells)
        before = weights
    return made


def _cells(score: Score) -> tuple[str, str]:
    increase = f"{100 * score.increase:+.2f}% ± {100 * score.error:.2f}"
    return f"{score.perplexity:.3f}", increase if score.error else ""


def _nested(by_format: dict[tuple[str, str], Score]) -> dict[str, dict[str, Any]]:
    nested: dict[str, dict[str, Any]] = {}
    for (weights, kv_dtype), score in by_format.items():
        nested.setdefault(weights, {})[kv_dtype] = asdict(score)
    return nested
