"""Trace formats with a header line: which columns tell them apart, and how a row is read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from engine.simulation.arrival import Arrival

Row = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Format:
    """A trace format in CSV. read: raises ValueError for a row that is no request.

    timed: whether a row says when the request arrives.
    """

    name: str
    columns: frozenset[str]
    read: Callable[[Row], Arrival]
    timed: bool = True


def _tenant(row: Row) -> Arrival:
    return Arrival(
        at=_seconds(row, "arrival_s"),
        prompt_tokens=_integer(row, "prompt_tokens"),
        output_tokens=_integer(row, "output_tokens"),
        tenant=row["tenant"],
        slo_class=row.get("class", "default"),
        priority=_integer(row, "priority") if "priority" in row else None,
        max_tokens=_integer(row, "max_tokens") if "max_tokens" in row else None,
    )


def _azure(row: Row) -> Arrival:
    """Wall times of up to 100 ns, read to the microsecond; without a zone they are UTC."""
    try:
        moment = datetime.fromisoformat(row["TIMESTAMP"])
    except ValueError:
        raise ValueError(f"TIMESTAMP: expected a date and time, got {row['TIMESTAMP']!r}") from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return Arrival(
        at=moment.timestamp(),
        prompt_tokens=_integer(row, "ContextTokens"),
        output_tokens=_integer(row, "GeneratedTokens"),
    )


def _lengths(row: Row) -> Arrival:
    return Arrival(
        at=0.0,
        prompt_tokens=_integer(row, "num_prefill_tokens"),
        output_tokens=_integer(row, "num_decode_tokens"),
    )


def _integer(row: Row, column: str) -> int:
    try:
        return int(row[column])
    except ValueError:
        raise ValueError(f"{column}: expected an integer, got {row[column]!r}") from None


def _seconds(row: Row, column: str) -> float:
    try:
        return float(row[column])
    except ValueError:
        raise ValueError(f"{column}: expected seconds, got {row[column]!r}") from None


FORMATS: Final = (
    # Ours. `class`, `priority` and `max_tokens` may follow; any other column is ignored.
    Format(
        "tenant CSV",
        frozenset({"arrival_s", "tenant", "prompt_tokens", "output_tokens"}),
        _tenant,
    ),
    # https://github.com/Azure/AzurePublicDataset, the LLM inference traces of 2023 and 2024.
    Format(
        "Azure CSV",
        frozenset({"TIMESTAMP", "ContextTokens", "GeneratedTokens"}),
        _azure,
    ),
    # https://github.com/microsoft/vidur, data/processed_traces: lengths without arrivals.
    Format("lengths CSV", frozenset({"num_prefill_tokens", "num_decode_tokens"}), _lengths, False),
)


def format_of(header: Iterable[str]) -> Format:
    """The format whose columns a header has. Raises ValueError if there is none."""
    columns = set(header)
    for known in FORMATS:
        if known.columns <= columns:
            return known
    wanted = "; ".join(f"{f.name}: {', '.join(sorted(f.columns))}" for f in FORMATS)
    raise ValueError(f"the header is that of no known format ({wanted})")
