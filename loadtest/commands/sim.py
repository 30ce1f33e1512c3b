"""Simulate a policy on a request trace, in virtual time."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any, Final

import click
import orjson
from rich.console import Console

from app.problems import BadConfiguration, Problem
from engine.batch import BLOCK
from loadtest.commands.options import (
    NEW_FILE,
    POSITIVE,
    FiniteRange,
    loaded_if_asked,
    offer_options,
)
from loadtest.commands.sim_setting import MEASURED, configured_setting, own_setting
from loadtest.metrics import report
from loadtest.progress import bar
from loadtest.reports import Report, here, write
from loadtest.simulation_page import page
from loadtest.simulation_tables import tables
from loadtest.traces.offer import Offer

MOST_POOL_TOKENS: Final = 2**26
"""More than fits into any machine; each block takes memory here as well."""


class NoiseType(FiniteRange):
    """A standard deviation, or MEASURED."""

    name = "float or measured"

    def __init__(self) -> None:
        super().__init__(0, 2)

    def convert(
        self, value: Any, param: click.Parameter | None, context: click.Context | None
    ) -> Any:
        return value if value == MEASURED else super().convert(value, param, context)


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
    "--config",
    "config_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Simulate what this configuration of the server says: policy, limits, classes, tenants.",
)
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="SECTION.KEY=VALUE",
    help="Override one value of it; may be repeated.",
)
@offer_options
@click.option(
    "--profile",
    metavar="NAME",
    help="What a step takes: vtc_a10g (Llama-2-7B on an A10G, fitted), GPU-MODEL of those that"
    " octavo capacity knows (an estimate: h200-llama-3.1-8b), or a profile's file."
    "  [default: vtc_a10g; engine.simulated of a configuration with that backend]",
)
@click.option(
    "--seed",
    default=0,
    type=click.IntRange(-(2**63), 2**63 - 1),
    show_default=True,
    help="Of the random numbers that policies, noise and drawn arrivals use.",
)
@click.option(
    "--noise",
    default="0",
    type=NoiseType(),
    metavar="SD",
    show_default=True,
    help="How steps scatter around what the profile says: the standard deviation of the logarithm,"
    " or measured: as the profile's residuals do.",
)
@click.option(
    "--pool-tokens",
    type=click.IntRange(BLOCK, MOST_POOL_TOKENS),
    help="Tokens that the KV cache holds. A request that can never fit is shed."
    "  [default: what the profile says, or 10000]",
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
@click.option("--ttft", type=POSITIVE, metavar="S", help="Promised time to the first token,")
@click.option("--tpot", type=POSITIVE, metavar="S", help="time per output token after it,")
@click.option(
    "--e2e",
    type=POSITIVE,
    metavar="S",
    help="and time to the last token. Goodput counts who got all three.  [default: no promise]",
)
@click.option(
    "--html",
    type=NEW_FILE,
    metavar="FILE",
    help="Write a report with charts there, one self-contained page.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
@click.pass_context
def sim(
    context: click.Context,
    offer: Offer,
    /,
    config_file: Path | None,
    overrides: tuple[str, ...],
    seed: int,
    html: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Let the requests of a trace run under a policy, in virtual time.

    The scheduler, the guard and the policy are those that serve; a step takes what the profile
    says, and nobody waits for it. The same arguments print the same bytes. With --config or --set
    it is the server of that configuration, with its limits, classes and tenants' weights; what its
    front end would refuse (limits.*, quotas) is let in.

    \b
    JSON keys, in seconds from a request's arrival unless it says otherwise:
      requests, completed, shed   in the trace; got all tokens; refused or too late
      ttft_s, e2e_s               to the first and to the last token: mean, p50, p95,
                                  p99
      itl_s                       gaps between tokens, pooled over requests
      tpot_s                      (last - first token) / (tokens - 1), a request
      queue_s                     to the first admission
      queue_seconds               all time in the queue by what kept its head out: step,
                                  tokens, rows, blocks, class, hold, policy
      output_tok_s                generated tokens / duration
      goodput_req_s               requests that met every promise / duration
      slo_attainment              requests that met every promise / requests
      preemptions                 how often a running request had to give way
      recomputed_tokens           tokens computed again for that
      recomputed_fraction         of all tokens computed
      max_bypass                  most requests that came after one and were
                                  admitted before it
      prefix_hit_rate             prompt tokens found cached / prompt tokens
      by_tenant, by_class         all of that for each
      jain                        Jain's index of the service (prompt tokens + 2 ·
                                  output tokens) of tenants that had somebody
                                  waiting all through a 60 s window; mean of the
                                  windows with two or more, 1 if there is none
      service_gap                 the largest difference of that service between two
                                  such tenants in one window
      forced_admissions           by the guard, to the oldest request
      policy_faults               what the guard saved, by kind
      prediction_error            mean |actual - predicted| / mean seconds of steps
      duration_s, steps           first arrival to last token; steps computed

    \b
    Examples:
      octavo sim --policy fcfs --trace arrivals.csv
      octavo sim --policy my_package.policies:Mine --params window=8 --trace arrivals.csv.gz --json
      octavo sim --trace azure.csv --profile h200-llama-3.1-8b --pool-tokens 200000 --ttft 1
      octavo sim --config config.yaml --set scheduler.policy=slo --profile mine.json \\
          --trace mooncake.jsonl --rate 3
    """
    loaded = loaded_if_asked(config_file, overrides)
    if loaded is None:
        setting = own_setting(**options)
    else:
        setting = configured_setting(context, loaded, **options)
    arrivals = offer.arrivals(seed)
    with bar("requests", len(arrivals)) as tick:
        run = setting.run(arrivals, seed, tick)
    answer = {**setting.facts, **offer.facts(), "seed": seed, **report(run)}
    if html is not None:
        origin = here(shlex.join(["octavo", *sys.argv[1:]]))
        _write(page(answer, run.records, origin), html)
    if as_json:
        click.echo(orjson.dumps(answer, option=orjson.OPT_INDENT_2))
    else:
        Console().print(*tables(answer), sep="\n")


def _write(report: Report, path: Path) -> None:
    try:
        write(report, path)
    except OSError as error:
        message = f"{path} cannot be written: {error.strerror}"
        raise BadConfiguration(Problem("--html", message)) from None
