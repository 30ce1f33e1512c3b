"""What was found: a line of JSON each, a table, and a section of loadtest/RESULTS.md."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

BEGIN, END = "<!-- gpu -->\n", "<!-- /gpu -->\n"


@dataclass(frozen=True, slots=True)
class Finding:
    """One number, or one fact.

    at_most: what it should not exceed; None where nothing was promised. fault: it is no number but
    what went wrong.
    """

    part: str
    name: str
    value: float | str
    unit: str = ""
    at_most: float | None = None
    fault: bool = False

    @property
    def passed(self) -> bool | None:
        """None where nothing was promised."""
        if self.fault:
            return False
        if self.at_most is None:
            return None
        return isinstance(self.value, int | float) and self.value <= self.at_most

    def line(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self))


def read_line(line: str) -> Finding | None:
    """What `Finding.line` wrote; None for any other line."""
    try:
        told = json.loads(line)
        return Finding(**told)
    except (ValueError, TypeError):
        return None


def table(findings: Iterable[Finding]) -> str:
    """A table in Markdown."""
    verdicts = {None: "", True: "yes", False: "**no**"}
    lines = ["| part | what | found | promised | kept |", "|---|---|---:|---:|---|"]
    for each in findings:
        promised = "" if each.at_most is None else f"≤ {_shown(each.at_most)}"
        found = f"{_shown(each.value)} {each.unit}".strip()
        cells = (each.part, each.name, found, promised, verdicts[each.passed])
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def section(findings: Sequence[Finding], date: str, rehearsed: bool) -> str:
    """The section, with its date. A rehearsal says that it measured nothing."""
    said = "**A rehearsal on a stand-in: nothing here was measured on a GPU.**\n\n"
    return (
        f"## On a GPU\n\n{date}, `make test-gpu`.\n\n{said if rehearsed else ''}{table(findings)}"
    )


def put_into(results: Path, text: str) -> None:
    """Put a section between the marks of a file, at its end if it has none."""
    before, _, rest = results.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    results.write_text(f"{before.rstrip()}\n\n{BEGIN}{text}{END}{after}", encoding="utf-8")


def _shown(value: float | str) -> str:
    if isinstance(value, str):
        return value.replace("|", "/").replace("\n", " ")
    return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
