"""Simulate a policy on a request trace, in virtual time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import click
import orjson
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from app.commands.options import policy_option
from app.config.schema import SchedulerConfig
from app.policy_loader import load_policy
from app.problems import BadConfiguration, Problem
from engine.batch import BLOCK
from loadtest.metrics import report
from loadtest.profiles import Profile, find_profile
from loadtest.simulation import Machine, PolicyMaker, Targets, simulate
from loadtest.simulation_tables import tables
from loadtest.traces import Arrival, at_speed, read_arrivals
from policies.base import Policy, Services


class FiniteRange(click.FloatRange):
    """A range that NaN and infinity are not in."""

    def convert(
        self, value: Any, param: click.Parameter | None, context: click.Context | None
    ) -> float:
        number = float(super().convert(value, param, context))
        if not math.isfinite(number):
            self.fail(f"{number} is no finite number.", param, context)
        return number


_SECONDS = FiniteRange(min=0, min_open=True)

MOST_POOL_TOKENS: Final = 2**26
"""More than fits into any machine; each block takes memory here as well."""


@click.command()
@click.option(
    "--policy",
    default="fcfs",
    metavar="NAME",
    show_default=True,
    help="An installed policy, or package.module:Class.",
)
@click.option(
    "--params", multiple=True, metavar="KEY=VALUE", help="A parameter of it; may be repeated."
)
@click.option(
    "--trace",
    "path",
    required=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Who arrives when: a tenant CSV (arrival_s, tenant, prompt_tokens, output_tokens, and if"
    " you like class, priority) or an Azure CSV, plain or gzipped.",
)
@click.option(
    "--profile",
    default="vtc_a10g",
    metavar="NAME",
    show_default=True,
    help="What a step takes: vtc_a10g (Llama-2-7B on an A10G, fitted), GPU-MODEL of those that"
    " octavo capacity knows (an estimate: h200-llama-3.1-8b), or a profile's file.",
)
@click.option(
    "--speed",
    default=1.0,
    type=FiniteRange(min=0, min_open=True),
    show_default=True,
    help="How many times as fast requests arrive.",
)
@click.option(
    "--seed",
    default=0,
    type=click.IntRange(-(2**63), 2**63 - 1),
    show_default=True,
    help="Of the random numbers that policies and noise use.",
)
@click.option(
    "--noise",
    default=0.0,
    type=FiniteRange(0, 2),
    show_default=True,
    help="How steps scatter around what the profile says: the standard deviation of the logarithm.",
)
@click.option(
    "--pool-tokens",
    default=10_000,
    type=click.IntRange(BLOCK, MOST_POOL_TOKENS),
    show_default=True,
    help="Tokens that the KV cache holds. A request that can never fit is shed.",
)
@click.option(
    "--step-tokens",
    default=2048,
    type=click.IntRange(1),
    show_default=True,
    help="Token budget of a step.",
)
@click.option(
    "--rows",
    default=256,
    type=click.IntRange(1),
    show_default=True,
    help="Most sequences computed in one step.",
)
@click.option("--ttft", type=_SECONDS, metavar="S", help="Promised time to the first token,")
@click.option("--tpot", type=_SECONDS, metavar="S", help="time per output token after it,")
@click.option(
    "--e2e",
    type=_SECONDS,
    metavar="S",
    help="and time to the last token. Goodput counts who got all three.  [default: no promise]",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
def sim(
    policy: str,
    params: tuple[str, ...],
    path: Path,
    profile: str,
    speed: float,
    seed: int,
    as_json: bool,
    ttft: float | None,
    tpot: float | None,
    e2e: float | None,
    **machine: Any,
) -> None:
    """Let the requests of a trace run under a policy, in virtual time.

    The scheduler, the guard and the policy are those that serve; a step takes what the profile
    says, and nobody waits for it. The same arguments print the same bytes.

    \b
    JSON keys, in seconds from a request's arrival unless it says otherwise:
      requests, completed, shed   in the trace; got all tokens; refused or too late
      ttft_s, e2e_s               to the first and to the last token: mean, p50, p99
      itl_s                       gaps between tokens, pooled over requests
      tpot_s                      (last - first token) / (tokens - 1), a request
      queue_s                     to the first admission
      output_tok_s                generated tokens / duration
      goodput_req_s               requests that met every promise / duration
      preemptions                 how often a running request had to give way
      recomputed_tokens           tokens computed again for that
      prefix_hit_rate             prompt tokens found cached / prompt tokens
      by_tenant, by_class         all of that for each, except the hit rate
      jain                        Jain's index of the service (prompt tokens + 2 ·
                                  output tokens) of tenants that had somebody
                                  waiting all through a 60 s window; mean of the
                                  windows with two or more, 1 if there is none
      forced_admissions           by the guard, to the oldest request
      policy_faults               what the guard saved, by kind
      duration_s, steps           first arrival to last token; steps computed

    \b
    Examples:
      octavo sim --policy fcfs --trace arrivals.csv
      octavo sim --policy my_package.policies:Mine --params window=8 --trace arrivals.csv.gz --json
      octavo sim --trace azure.csv --profile h200-llama-3.1-8b --pool-tokens 200000 --ttft 1
    """
    scheduler = policy_option(policy, params)
    costs = find_profile(profile)
    on = _machine(costs, **machine)
    arrivals = _arrivals(path, speed)
    targets = Targets(ttft or math.inf, tpot or math.inf, e2e or math.inf)
    with _progress(len(arrivals)) as tick:
        run = simulate(
            _maker(scheduler),
            arrivals,
            on,
            targets=_for_all(arrivals, targets),
            seed=seed,
            tick=tick,
        )
    answer = {
        "policy": policy,
        "params": scheduler.params,
        "trace": path.name,
        "speed": speed,
        "seed": seed,
        "profile": costs.name,
        "estimate": costs.estimate,
        **machine,
        **report(run),
    }
    if as_json:
        click.echo(orjson.dumps(answer, option=orjson.OPT_INDENT_2))
    else:
        Console().print(*tables(answer), sep="\n")


def _machine(
    profile: Profile, *, pool_tokens: int, step_tokens: int, rows: int, noise: float
) -> Machine:
    """What is simulated. Raises BadConfiguration where some request would starve (E13)."""
    machine = Machine(profile.cost, pool_tokens, step_tokens, rows, noise=noise)
    window = machine.guard.window
    if rows + window > window * step_tokens:
        message = f"{rows} + {window} is more than {window} steps of {step_tokens} tokens compute"
        raise BadConfiguration(Problem("--rows", f"{message}, so some request would starve"))
    return machine


def _arrivals(path: Path, speed: float) -> list[Arrival]:
    """The requests of a trace. Raises BadConfiguration for a speed that takes them beyond time."""
    arrivals = read_arrivals(path)
    try:
        return list(at_speed(arrivals, speed))
    except ValueError as error:
        raise BadConfiguration(Problem("--speed", str(error))) from None


def _maker(scheduler: SchedulerConfig) -> PolicyMaker:
    def make(*, services: Services) -> Policy:
        return load_policy(scheduler, services)

    return make


def _for_all(arrivals: list[Arrival], targets: Targets) -> dict[str, Targets]:
    return {arrival.slo_class: targets for arrival in arrivals}


@contextmanager
def _progress(requests: int) -> Iterator[Callable[[], None]]:
    """A bar on stderr while requests end, and only if that is a terminal."""
    console = Console(stderr=True)
    columns = TextColumn("requests"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()
    disable = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=disable) as progress:
        task = progress.add_task("requests", total=requests)
        yield lambda: progress.advance(task)
