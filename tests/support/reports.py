"""A report with everything in it that reports can have."""

from __future__ import annotations

import math

from loadtest.reports import (
    Axis,
    Column,
    Interval,
    Mark,
    Origin,
    Report,
    Section,
    Table,
    Text,
    Tiles,
    Verdict,
    cdf,
    decision_table,
    histogram,
    percentiles_over,
    service,
    timeline,
    timeline_steps,
)

EVIL = "</script><img src=x onerror=alert(1)>&amp;\u2028"
"""A name that would like to be more."""


def sample_report() -> Report:
    """Tiles, tables, and a chart of each kind, from numbers that look like something."""
    first = [0.1 + 0.001 * (k * 37 % 400) for k in range(400)]
    second = [0.08 + 0.001 * (k * 53 % 250) for k in range(400)]
    times = [k / 2 for k in range(240)]
    waves = [8 + 4 * math.sin(at / 9) for at in times]
    return Report(
        title="fcfs beside fair-share",
        question="Should the shared endpoint change its policy?",
        origin=Origin(
            "octavo sim --policy 'a&b' --trace <file>",
            {"octavo": "1.2.3", "python": "3.11"},
            {"processor": "two cores"},
            "2026-01-01",
        ),
        answer="For most tenants the first token comes earlier.",
        figures={"name": EVIL},
        sections=[
            Section(
                "At a glance",
                [
                    Tiles([("requests", "1,500", "of 27 tenants"), ("failed", "0", "of 1,500")]),
                    decision_table(
                        [
                            (
                                "TTFT",
                                "s",
                                0.24,
                                0.18,
                                Interval(-0.06, -0.07, -0.05),
                                Verdict.BETTER,
                            ),
                            ("output", "tokens/s", 541, 520, Interval(-21, -30, -9), Verdict.WORSE),
                        ],
                        ("fcfs", "fair-share"),
                        title="Verdicts",
                    ),
                ],
            ),
            Section(
                "Latency",
                [
                    cdf("TTFT", {EVIL: first, "b": second}, marks=[Mark(0.3, "target", "x")]),
                    histogram("ITL", {"a": first, "b": second}),
                    percentiles_over(
                        "TTFT over load",
                        Axis("requests a second", "1/s"),
                        [1, 2, 4, 8],
                        {"p50": [0.1, 0.12, 0.2, 0.9], "p99": [0.3, 0.4, 0.9, 2.2]},
                        bounds={"p99": ([0.2, 0.3, 0.7, 1.6], [0.4, 0.5, 1.1, 2.9])},
                        marks=[Mark(2, "target 2 s")],
                    ),
                    cdf("E2E", {"a": first}, log=True),
                ],
                "Counted from arrival.",
            ),
            Section(
                "Over time",
                [
                    timeline(
                        "Requests", times, {"running": waves, "waiting": waves[::-1]}, stacked=True
                    ),
                    timeline_steps("Tokens of a step", {"decode": (times, waves)}),
                    service({"a": times, "b": times[::2]}),
                    Table([Column("tenant"), Column("n")], [[EVIL, 3], ["b", 4]]),
                    Text("That is all."),
                ],
            ),
        ],
    )
