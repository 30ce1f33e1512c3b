"""What was measured, round by round, and what it comes to: medians, and ours over the best peer's.

Everything is kept in a JSON file, to which later rounds on the same machine are added.
"""

from __future__ import annotations

import datetime
import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from loadtest.peers.servers import Served
from loadtest.peers.work import BY_NAME, WORKS, Times, rates

OURS: Final = "octavo"
PHASES: Final = ("prefill", "decode", "output")
_ABOUT: Final = "What `octavo bench-peers` measured: every engine's samples, and what they come to."
DIRECT: Final = "128x32"
"""The direct work that is the mix over HTTP."""


@dataclass(frozen=True, slots=True)
class Entrant:
    """An engine as it was measured. failure: why there is nothing, or no more, of it."""

    what: str
    version: str
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class Ratio:
    """Ours over the best peer's."""

    peer: str
    ratio: float


@dataclass(slots=True)
class Results:
    """machine: processor, and versions that all engines share. model: the file's name. direct:
    by engine and work; served: by engine. Both hold a sample a round. notes: what else to know."""

    model: str
    machine: Mapping[str, Any]
    date: str = field(default_factory=lambda: datetime.date.today().isoformat())
    entrants: dict[str, Entrant] = field(default_factory=dict)
    direct: dict[str, dict[str, list[Times]]] = field(default_factory=dict)
    served: dict[str, list[Served]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def rounds(self) -> int:
        """The most rounds of anything."""
        direct = [len(samples) for works in self.direct.values() for samples in works.values()]
        served = [len(samples) for samples in self.served.values()]
        return max(direct + served, default=0)

    def enter(self, name: str, entrant: Entrant) -> None:
        """Let an engine be measured. What another version of it did is forgotten."""
        known = self.entrants.get(name)
        if known is not None and known.version != entrant.version:
            self.direct.pop(name, None)
            self.served.pop(name, None)
        self.entrants[name] = entrant

    def add(self, name: str, work: str, times: Times) -> None:
        """A round of direct work."""
        self.direct.setdefault(name, {}).setdefault(work, []).append(times)

    def add_served(self, name: str, served: Served) -> None:
        """A round over HTTP."""
        self.served.setdefault(name, []).append(served)

    # ── what it comes to ──────────────────────────────────────────────────────────────────────

    def median(self, name: str, work: str, phase: str) -> float | None:
        """Tokens a second in one of PHASES; None if it was not measured."""
        samples = self.direct.get(name, {}).get(work)
        return getattr(rates(BY_NAME[work], samples), phase) if samples else None

    def served_median(self, name: str, figure: str) -> float | None:
        """A field of `Served`; None if it was not measured."""
        return _median(getattr(each, figure) for each in self.served.get(name, ()))

    def ratio(self, work: str, phase: str) -> Ratio | None:
        """Ours over the best peer's in direct work; None until both were measured."""
        return _ratio({name: self.median(name, work, phase) for name in self.entrants})

    def served_ratio(self) -> Ratio | None:
        """The same over HTTP, in generated tokens a second."""
        return _ratio({name: self.served_median(name, "output_tok_s") for name in self.entrants})

    def served_share(self, name: str) -> float | None:
        """The rate over HTTP as a fraction of that of the same mix without it."""
        served, direct = (
            self.served_median(name, "output_tok_s"),
            self.median(name, DIRECT, "output"),
        )
        return None if served is None or direct is None else served / direct

    # ── the file ──────────────────────────────────────────────────────────────────────────────

    def as_json(self) -> dict[str, Any]:
        """All samples, and under `summary` what they come to."""
        return {"about": _ABOUT, **asdict(self), "summary": self._summary()}

    def save(self, path: Path) -> None:
        """Write the file anew."""
        part = path.with_name(f"{path.name}.part")
        part.write_text(json.dumps(self.as_json(), indent=1) + "\n")
        part.replace(path)

    def _summary(self) -> dict[str, Any]:
        return {
            "direct": {
                work.name: {
                    phase: {
                        "median": {
                            name: self.median(name, work.name, phase) for name in self.direct
                        },
                        "ours_over_best": _plain(self.ratio(work.name, phase)),
                    }
                    for phase in PHASES
                }
                for work in WORKS
            },
            "http": {
                "output_tok_s": {
                    name: self.served_median(name, "output_tok_s") for name in self.served
                },
                "of_direct": {name: self.served_share(name) for name in self.served},
                "ours_over_best": _plain(self.served_ratio()),
            },
        }


def load(path: Path) -> Results:
    """Read what `save` wrote. Raises ValueError if it is something else."""
    try:
        saved = json.loads(path.read_text())
        return Results(
            model=saved["model"],
            machine=saved["machine"],
            date=saved["date"],
            notes=saved["notes"],
            entrants={name: Entrant(**each) for name, each in saved["entrants"].items()},
            direct={
                name: {work: [Times(**each) for each in samples] for work, samples in works.items()}
                for name, works in saved["direct"].items()
            },
            served={
                name: [Served(**each) for each in samples]
                for name, samples in saved["served"].items()
            },
        )
    except (LookupError, TypeError, AttributeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} holds no results of octavo bench-peers") from error


def _median(values: Iterable[float]) -> float | None:
    found: Sequence[float] = list(values)
    return statistics.median(found) if found else None


def _ratio(rates: Mapping[str, float | None]) -> Ratio | None:
    known = {name: rate for name, rate in rates.items() if rate is not None}
    ours = known.pop(OURS, None)
    if ours is None or not known:
        return None
    best = max(known, key=lambda name: known[name])
    return Ratio(best, ours / known[best])


def _plain(ratio: Ratio | None) -> dict[str, Any] | None:
    return None if ratio is None else asdict(ratio)
