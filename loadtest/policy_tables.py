"""What policies are for, in figures: experiments on published traces, each a table for the docs.

The scheduler that serves, in virtual time. An experiment is a trace, a machine, what is done to the
trace, and the runs that are compared; `EXPERIMENTS` has them by name. The same arguments give the
same figures.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from engine.simulation import Machine, PolicyMaker, Record, Targets, simulate
from loadtest.metrics import report
from loadtest.profiles import find_profile
from loadtest.traces import Arrival, at_speed
from policies.decode_priority import DecodePriority
from policies.fair_share import FairShare
from policies.fcfs import FCFS
from policies.prefix_first import PrefixFirst
from policies.slo import SLO

AZURE: Final = "azure2023_conv_first40min.csv.gz"
ARENA: Final = "vtc_arena_10min.csv.gz"
PROFILE: Final = "h200-llama-3.1-8b"
POOL_TOKENS: Final = 200_000

Row = Mapping[str, Any]
"""One run: what it was, and its figures by column."""


@dataclass(frozen=True, slots=True)
class Experiment:
    """A comparison of policies.

    setting: what runs on what, in words. trace: the name of the file. run: from the requests of the
    trace to the rows, one after the other. runs: how many there are.
    """

    title: str
    setting: str
    trace: str
    run: Callable[[Sequence[Arrival]], Iterator[Row]]
    runs: int


def machine(**fields: Any) -> Machine:
    """An H200 that serves Llama-3.1-8B, by the roofline, with a pool of 200,000 tokens."""
    return Machine(find_profile(PROFILE).cost, POOL_TOKENS, **fields)


def capacity(arrivals: Sequence[Arrival]) -> float:
    """The speed at which a trace arrives as fast as it is computed.

    That is its span, over the time in which fcfs computes it when all of it is there at once.
    """
    at_once = [replace(arrival, at=0.0) for arrival in arrivals]
    seconds = report(simulate(FCFS, at_once, machine()))["duration_s"]
    return float(arrivals[-1].at / seconds)


# ---------------------------------------------------------------- decode-priority

TBT_S: Final = 0.025
BUDGETS: Final = (384, 448, 480, 512, 544, 576, 640)
LOAD: Final = 0.8
LONG_PROMPT: Final = 16_000
EVERY_S: Final = 10.0


def with_long_prompts(arrivals: Sequence[Arrival]) -> list[Arrival]:
    """Beside the trace, a prompt of 16,000 tokens every 10 s, each for an answer of 100."""
    times = [EVERY_S * i for i in range(1, int(arrivals[-1].at / EVERY_S) + 1)]
    long = [Arrival(at=at, prompt_tokens=LONG_PROMPT, output_tokens=100) for at in times]
    return sorted([*arrivals, *long], key=lambda arrival: arrival.at)


def beside_long_prompts(
    arrivals: Sequence[Arrival], budgets: Sequence[int] = BUDGETS
) -> Iterator[Row]:
    """decode-priority against fcfs with fixed token budgets.

    The capacity is that of the trace with as many long prompts as come while it is computed.
    """
    speed = capacity(arrivals)
    speed = capacity(with_long_prompts(list(at_speed(arrivals, speed)))) * speed
    offered = with_long_prompts(list(at_speed(arrivals, LOAD * speed)))
    policy = partial(DecodePriority, tbt_s=TBT_S)
    yield _latency_row(f"decode-priority, {1000 * TBT_S:g} ms", policy, offered, machine())
    for budget in budgets:
        on = machine(step_tokens=budget)
        yield _latency_row(f"fcfs, {budget} tokens a step", FCFS, offered, on)


def _latency_row(name: str, policy: PolicyMaker, offered: Sequence[Arrival], on: Machine) -> Row:
    figures = report(simulate(policy, offered, on))
    return {
        "policy": name,
        "itl_p99_ms": 1000 * figures["itl_s"]["p99"],
        "itl_mean_ms": 1000 * figures["itl_s"]["mean"],
        "ttft_p50_s": figures["ttft_s"]["p50"],
        "ttft_p99_s": figures["ttft_s"]["p99"],
    }


# ---------------------------------------------------------------- slo

TWO_CLASSES: Final = {
    "interactive": Targets(ttft=2.0, tpot=0.05),
    "batch": Targets(ttft=30.0, tpot=0.1),
}
INTERACTIVE: Final = 0.7
LOADS: Final = (0.7, 0.85, 1.0, 1.15, 1.3)
COMPARED: Final[Mapping[str, PolicyMaker]] = {
    "fcfs": FCFS,
    "slo": SLO,
    "slo, late: reject": partial(SLO, late="reject"),
}


def in_two_classes(arrivals: Sequence[Arrival], seed: int = 0) -> list[Arrival]:
    """Seven of ten requests, drawn at random, are interactive; the others are batch."""
    chance = random.Random(f"classes {seed}")
    return [
        replace(each, slo_class="interactive" if chance.random() < INTERACTIVE else "batch")
        for each in arrivals
    ]


def with_two_classes(arrivals: Sequence[Arrival], loads: Sequence[float] = LOADS) -> Iterator[Row]:
    """slo against fcfs, around and beyond capacity."""
    mixed = in_two_classes(arrivals)
    speed = capacity(mixed)
    for load in loads:
        offered = list(at_speed(mixed, load * speed))
        for name, policy in COMPARED.items():
            yield {"load": load, "policy": name, **_goodput(policy, offered)}


def _goodput(policy: PolicyMaker, offered: Sequence[Arrival]) -> Row:
    run = simulate(policy, offered, machine(), targets=TWO_CLASSES)
    figures = report(run)
    return {
        "goodput_req_s": figures["goodput_req_s"],
        **{
            f"{name}_met": sum(r.met for r in run.records if r.arrival.slo_class == name)
            / sum(r.arrival.slo_class == name for r in run.records)
            for name in TWO_CLASSES
        },
        "shed": figures["shed"],
        "preemptions": figures["preemptions"],
    }


# ---------------------------------------------------------------- fair-share

A10G: Final = "vtc_a10g"
A10G_POOL: Final = 10_000
HEAVY: Final = 4
ARENA_SPEED: Final = 1.1
SHARING: Final[Mapping[str, PolicyMaker]] = {
    "fcfs": FCFS,
    "fair-share": FairShare,
    "fair-share, predicted output": partial(FairShare, predict_output=True),
    "prefix-first": PrefixFirst,
}


def beside_heavy_tenants(
    arrivals: Sequence[Arrival], policies: Mapping[str, PolicyMaker] = SHARING
) -> Iterator[Row]:
    """Policies that share against fcfs: how long the heaviest tenants wait, and all others."""
    offered = list(at_speed(arrivals, ARENA_SPEED))
    for name, policy in policies.items():
        run = simulate(policy, offered, Machine(find_profile(A10G).cost, A10G_POOL))
        tenants: dict[str, list[Record]] = {}
        for record in run.records:
            tenants.setdefault(record.arrival.tenant, []).append(record)
        by_size = sorted(tenants.values(), key=len, reverse=True)
        figures = report(run)
        yield {
            "policy": name,
            "heavy_ttft_mean_s": _mean_ttft(by_size[:HEAVY]),
            "light_ttft_mean_s": _mean_ttft(by_size[HEAVY:]),
            "jain": figures["jain"],
            "output_tok_s": figures["output_tok_s"],
            "recomputed_tokens": figures["recomputed_tokens"],
        }


def _mean_ttft(tenants: Sequence[Sequence[Record]]) -> float:
    waits = [r.ttft for records in tenants for r in records if r.token_times]
    return sum(waits) / max(1, len(waits))


# ---------------------------------------------------------------- all of them

_ON: Final = (
    f"Azure's conversation trace of 2023 on {PROFILE} (an estimate), {POOL_TOKENS:,} tokens of KV"
)

EXPERIMENTS: Final[Mapping[str, Experiment]] = {
    "decode-priority": Experiment(
        title="decode-priority beside long prompts",
        setting=f"{_ON}; a prompt of {LONG_PROMPT:,} tokens every {EVERY_S:g} s besides; "
        f"{LOAD} of capacity",
        trace=AZURE,
        run=beside_long_prompts,
        runs=1 + len(BUDGETS),
    ),
    "fair-share": Experiment(
        title="fair-share beside heavy tenants",
        setting=f"Chatbot Arena trace of the VTC artifact at speed {ARENA_SPEED} on {A10G}, "
        f"{A10G_POOL:,} tokens of KV; the {HEAVY} tenants with most requests are heavy",
        trace=ARENA,
        run=beside_heavy_tenants,
        runs=len(SHARING),
    ),
    "slo": Experiment(
        title="slo with two classes",
        setting=f"{_ON}; seven of ten requests are interactive (first token within 2 s, 50 ms a "
        "token), three are batch (30 s, 100 ms); load in parts of capacity",
        trace=AZURE,
        run=with_two_classes,
        runs=len(LOADS) * len(COMPARED),
    ),
}


def markdown(rows: Sequence[Row]) -> str:
    """Rows as a Markdown table: columns as in the first, numbers short."""
    columns = list(rows[0])
    lines = [columns, ["---"] * len(columns), *([_cell(row[c]) for c in columns] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
