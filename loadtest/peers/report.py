"""Results as Markdown tables."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from loadtest.peers.results import OURS, Ratio, Results
from loadtest.peers.servers import Mix
from loadtest.peers.work import LONG, SHORT, Work

SERVED_GOAL: Final = 2.5
SHARE_GOAL: Final = 0.8


def goal(work: Work) -> float:
    """How many times the best peer's rate ours should be, in prefill and in decode."""
    return 1.3 if work.sequences == 1 else 1.5


def markdown(results: Results) -> str:
    """Every table, and what was measured on what."""
    sections = [_provenance(results)]
    for works in (SHORT, LONG):
        if any(work.name in done for done in results.direct.values() for work in works):
            for phase in ("prefill", "decode"):
                sections += [_title(works, phase), _direct(results, works, phase)]
    if results.served:
        sections += [_served_title(Mix()), _served(results)]
    sections += [_entrants(results), *results.notes]
    return "\n\n".join(sections) + "\n"


def _provenance(results: Results) -> str:
    machine = results.machine
    flags = ", ".join(machine["flags"]) or "no vector extensions that matter"
    return (
        f"{results.model} on {machine['model']}, {machine['cores']} cores ({flags}),"
        f" Python {machine['python']}, {results.date}. Medians of the rounds in the last table."
    )


def _title(works: Sequence[Work], phase: str) -> str:
    work = works[0]
    counts = ", ".join(str(each.sequences) for each in works)
    return (
        f"**{phase.capitalize()}, tokens a second: {work.prompt:,} tokens in, {work.output} out,"
        f" {counts} sequences at once**"
    )


def _direct(results: Results, works: Sequence[Work], phase: str) -> str:
    rows = [
        [name, *(_rate(results.median(name, work.name, phase)) for work in works)]
        for name in results.entrants
        if any(results.median(name, work.name, phase) is not None for work in works)
    ]
    ratios = [_ratio(results.ratio(work.name, phase), goal(work)) for work in works]
    rows.append([f"{OURS} over the best peer", *ratios])
    return _table(["engine", *(str(work.sequences) for work in works)], rows)


def _served_title(mix: Mix) -> str:
    return (
        f"**Over HTTP: {mix.prompt} random tokens in, {mix.output} out, {mix.concurrent} clients,"
        f" {mix.requests} requests a round (`vllm bench serve`)**"
    )


def _served(results: Results) -> str:
    rows = []
    for name in results.served:
        share = results.served_share(name)
        cells = [_rate(results.served_median(name, "output_tok_s"))]
        cells.append("" if share is None else f"{share:.0%}")
        cells += [_rate(results.served_median(name, each)) for each in ("ttft_ms", "tpot_ms")]
        failed = sum(each.failed for each in results.served[name])
        rows.append([name, *cells, str(failed)])
    goals = f"goal ≥ {SHARE_GOAL:.0%}"
    ratio = _ratio(results.served_ratio(), SERVED_GOAL)
    rows.append([f"{OURS} over the best peer", ratio, goals, "", "", ""])
    header = [
        "server",
        "output tok/s",
        "of its direct rate",
        "median TTFT, ms",
        "median TPOT, ms",
        "failed",
    ]
    return _table(header, rows)


def _entrants(results: Results) -> str:
    rows = []
    for name, entrant in results.entrants.items():
        rounds = _rounds(results.direct.get(name, {}))
        served = len(results.served.get(name, ()))
        rows.append(
            [name, entrant.what, entrant.version, rounds, str(served), entrant.failure or ""]
        )
    header = ["engine", "what", "version", "rounds", "over HTTP", "why not"]
    return _table(header, rows, texts=(0, 1, 2, 5))


def _rounds(works: Mapping[str, Sequence[object]]) -> str:
    counts = sorted({len(samples) for samples in works.values()})
    if not counts:
        return "0"
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]}-{counts[-1]}"


def _rate(rate: float | None) -> str:
    if rate is None:
        return "–"
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.1f}"


def _ratio(ratio: Ratio | None, wanted: float) -> str:
    if ratio is None:
        return "–"
    verdict = "≥" if ratio.ratio >= wanted else "missed:"
    return f"{ratio.ratio:.2f} ({verdict} {wanted}; {ratio.peer})"


def _table(
    header: Sequence[str], rows: Iterable[Sequence[str]], texts: Collection[int] = (0,)
) -> str:
    """texts: the columns that hold words, not figures."""
    rules = ["---" if column in texts else "---:" for column in range(len(header))]
    lines = [header, rules, *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
