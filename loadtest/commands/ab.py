"""Compare policies on the same requests, with intervals and a verdict a metric."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click
import orjson
from rich.console import Console

from app.config import load_config
from app.problems import BadConfiguration, Problem
from engine.batch import BLOCK
from loadtest import reports
from loadtest.ab.answer import Answer
from loadtest.ab.arms import Arm, SimulatedArm
from loadtest.ab.capacity import Capacity
from loadtest.ab.experiment import Experiment, Result, run
from loadtest.ab.groups import Row, parse_row
from loadtest.ab.intervals import FEWEST
from loadtest.ab.live import LiveArm, run_live
from loadtest.ab.metrics import PRIMARY
from loadtest.ab.report import report
from loadtest.ab.tables import markdown, tables
from loadtest.ab.workers import Workers, cores, workers
from loadtest.ab.workload import Workload, read_workload
from loadtest.commands.options import NEW_FILE, POSITIVE, offer_options
from loadtest.commands.sim import MOST_POOL_TOKENS, NoiseType
from loadtest.commands.sim_setting import MEASURED, noise_of
from loadtest.houses import house_of, targets_of
from loadtest.live import Settings
from loadtest.profiles import Profile, find_profile
from loadtest.progress import bar
from loadtest.traces import Arrival, at_speed
from loadtest.traces.offer import Offer

WORSE_EXIT_CODE: Final = 3
"""Exit code where a figure of --fail-if-worse is worse."""


class RowType(click.ParamType[Row]):
    """A figure, as METRIC or METRIC@GROUP."""

    name = "figure"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Row:
        try:
            return value if isinstance(value, Row) else parse_row(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


ROW: Final = RowType()


@dataclass(frozen=True, slots=True)
class Plan:
    """What is compared on what: everything but how fast requests come."""

    configs: Sequence[Path]
    overrides: tuple[str, ...]
    profile: str | None
    pool_tokens: int | None
    noise: float | str | None

    def arms(self) -> list[Arm]:
        """The arms, each under the name of its file."""
        costs = find_profile(self.profile) if self.profile else None
        noise = noise_of(self._said(costs), costs)
        arms: list[Arm] = []
        for name, path in zip(names(self.configs), self.configs, strict=True):
            config = load_config(path, os.environ, self.overrides)
            house = house_of(config, costs, pool_tokens=self.pool_tokens, noise=noise)
            arms.append(SimulatedArm(name, house))
        return arms

    def _said(self, costs: Profile | None) -> float | str:
        """The noise where nobody says it: what was measured, if anything was."""
        if self.noise is not None:
            return self.noise
        return MEASURED if costs and costs.residuals else 0.0

    def facts(self) -> dict[str, Any]:
        """For JSON."""
        costs = find_profile(self.profile) if self.profile else None
        return {
            "arms": dict(zip(names(self.configs), map(str, self.configs), strict=True)),
            "set": list(self.overrides),
            "profile": self.profile or "engine.simulated",
            "pool_tokens": self.pool_tokens,
            "noise": self._said(costs),
        }


def names(configs: Sequence[Path]) -> list[str]:
    """What tells the files apart: their names without ending, else their paths."""
    stems = [path.stem for path in configs]
    return stems if len(set(stems)) == len(stems) else [str(path) for path in configs]


@click.command()
@click.argument("configs", nargs=-1, type=click.Path(path_type=Path), metavar="[A.yaml B.yaml ...]")
@offer_options
@click.option(
    "--seeds",
    default=20,
    type=click.IntRange(FEWEST),
    show_default=True,
    help="How many traces like this one both get.",
)
@click.option(
    "--load",
    "loads",
    multiple=True,
    type=POSITIVE,
    help="Requests come so fast, in parts of what the first configuration computes; may be"
    " repeated.  [default: --speed or --rate]",
)
@click.option(
    "--workload",
    "workload_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="What is done to the trace first (YAML): requests (only so many), classes (NAME: part,"
    " drawn), asked_tokens (maximum that clients name), heaviest (so many tenants are a group),"
    " beside (every_s, prompt_tokens, output_tokens: requests at fixed times).",
)
@click.option(
    "--profile",
    metavar="NAME",
    help="What a step takes, as for octavo sim.  [default: engine.simulated of a configuration"
    " with that backend]",
)
@click.option(
    "--pool-tokens",
    type=click.IntRange(BLOCK, MOST_POOL_TOKENS),
    help="Tokens that the KV cache holds.  [default: what the profile says]",
)
@click.option(
    "--noise",
    type=NoiseType(),
    metavar="SD",
    help="How steps scatter, in all arms alike: the standard deviation of the logarithm, or"
    " measured.  [default: as the profile's residuals do, 0 if it has none]",
)
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="SECTION.KEY=VALUE",
    help="Override one value of all configurations; may be repeated.",
)
@click.option(
    "--primary",
    multiple=True,
    type=ROW,
    metavar="FIGURE",
    help=f"What the comparison is about; may be repeated.  [default: {', '.join(PRIMARY)}]",
)
@click.option(
    "--fail-if-worse",
    "gates",
    multiple=True,
    type=ROW,
    metavar="FIGURE",
    help=f"Exit with {WORSE_EXIT_CODE} if the verdict on this figure is worse; it is a primary one"
    " then. May be repeated.",
)
@click.option(
    "--live",
    "urls",
    nargs=2,
    metavar="URL_A URL_B",
    help="Ask two servers instead, in real time and by turns. Configurations, if given, are theirs:"
    " of them come the names, and the targets of classes.",
)
@click.option(
    "--key",
    "keys",
    multiple=True,
    metavar="TENANT=KEY",
    help="With --live: the API key of a tenant; =KEY is everybody else's. May be repeated.",
)
@click.option(
    "--jobs",
    type=click.IntRange(1),
    help="Processes that simulate.  [default: one a core]",
)
@click.option("--html", type=NEW_FILE, metavar="FILE", help="Write a report.")
@click.option("--json", "form", flag_value="json", help="Print JSON instead of tables.")
@click.option("--markdown", "form", flag_value="markdown", help="Print the figures as Markdown.")
def ab(
    offer: Offer,
    /,
    configs: tuple[Path, ...],
    seeds: int,
    loads: tuple[float, ...],
    workload_file: Path | None,
    overrides: tuple[str, ...],
    profile: str | None,
    pool_tokens: int | None,
    noise: float | str | None,
    primary: tuple[Row, ...],
    gates: tuple[Row, ...],
    urls: tuple[str, str] | None,
    keys: tuple[str, ...],
    jobs: int | None,
    html: Path | None,
    form: str | None,
) -> None:
    """Compare configurations on the same requests: the first with each of the others.

    A seed is the trace in blocks of consecutive requests, longer than the longest busy period and
    drawn anew; all arms get the same ones, and steps scatter alike in them. Differences are the
    other arm minus the first, means over seeds. Intervals are for 95%, one by one; verdicts are
    corrected for how many figures are looked at: on primary figures by Holm (one comparison of
    twenty without any difference gets a verdict), on all others by Benjamini and Hochberg (one
    verdict of twenty is wrong).

    \b
    A FIGURE is METRIC, METRIC@class:NAME, METRIC@tenant:NAME, METRIC@share:heaviest or
    METRIC@share:others. METRICs are those of octavo sim --json (ttft_s.mean, itl_s.p99, ...),
    and
      met                   part of the requests that met their targets
      service_gap           largest difference in service of two tenants that compete,
                            in a window of 60 s, prompt tokens + 2 · output tokens
      running               requests that run at once, mean over steps
      wasted_kv             part of the KV memory held that is empty
      wasted_rows           part of the rows of static batches that pads them

    \b
    JSON keys:
      arms, set, profile, pool_tokens, noise, trace, speed, rate, burstiness, even,
      workload, seeds, level      what was compared
      comparisons                 each arm with the first, at each load:
        first, second, load       names; in parts of capacity, null without --load
        blocks                    requests of a block; busy_s, the longest busy period;
                                  cut: whether blocks had to be shorter than that
        differences               metric, of (all, class, tenant, share), name; first,
                                  second: means; difference, low, high (null: without
                                  bound, or too few seeds), relative (to first), p,
                                  verdict, primary, seeds, spread (standard deviation
                                  over seeds), seeds_for_5_percent (that show 5% of
                                  first in 80% of all experiments; null: too many)
        requests                  of the same requests, by latency: pairs, mean, low,
                                  high, p1 to p99 in seconds; parts faster and slower

    \b
    Exit codes: 0 done, 2 what was asked for cannot be, 3 worse (--fail-if-worse).

    \b
    Examples:
      octavo ab fcfs.yaml slo.yaml --trace azure.csv --profile h200-llama-3.1-8b \\
          --pool-tokens 200000 --load 0.85 --load 1.15 --html slo.html
      octavo ab now.yaml new.yaml --trace yesterday.csv --profile mine.json \\
          --fail-if-worse ttft_s.p99 --json
      octavo ab --live http://a:8000 http://b:8000 --trace arrivals.csv --seeds 6
    """
    rows = tuple(dict.fromkeys([*(primary or map(parse_row, PRIMARY)), *gates]))
    workload = read_workload(workload_file)
    arrivals = workload.prepared(offer.arrivals())
    facts = {**offer.facts(), "workload": workload.model_dump()}
    if urls:
        results = [_live(urls, configs, overrides, keys, arrivals, workload, seeds)]
        facts = {"arms": dict(zip(_names(urls, configs), urls, strict=True)), **facts}
    else:
        plan = Plan(configs, overrides, profile, pool_tokens, noise)
        results = _simulated(plan, offer, arrivals, workload, loads, seeds, jobs or cores())
        facts = {**plan.facts(), **facts}
    answer = Answer.of(results, rows, seeds, facts)
    _show(answer, form, html)
    _gate(answer, gates)


def _simulated(
    plan: Plan,
    offer: Offer,
    arrivals: list[Arrival],
    workload: Workload,
    loads: Sequence[float],
    seeds: int,
    jobs: int,
) -> list[Result]:
    """The results at each load, in virtual time."""
    if len(plan.configs) < 2:
        raise BadConfiguration(Problem("", "name two configurations at least, or --live URL URL"))
    if again := _named_again(plan.configs):
        click.echo(f"Note: {again} is named twice, so every difference will be 0.", err=True)
    if loads and (offer.speed != 1.0 or offer.rate is not None):
        raise BadConfiguration(Problem("--load", "requests have either a load or a speed or rate"))
    arms = plan.arms()
    runs = len(arms) * (1 + seeds) * max(1, len(loads)) + bool(loads)
    with bar("simulations", runs) as tick, workers(jobs, tick) as crew:
        offers = _offers(arms, arrivals, workload, loads, crew)
        return [run(Experiment(arms, each, workload, load), seeds, crew) for load, each in offers]


def _named_again(configs: Sequence[Path]) -> Path | None:
    """The first file that has been named before, if any has."""
    return next((path for n, path in enumerate(configs) if path in configs[:n]), None)


def _offers(
    arms: Sequence[Arm],
    arrivals: list[Arrival],
    workload: Workload,
    loads: Sequence[float],
    crew: Workers,
) -> list[tuple[float | None, list[Arrival]]]:
    """The requests at each load."""
    if not loads:
        return [(None, arrivals)]
    (speed,) = crew.map(Capacity.speed, [Capacity(arms[0], arrivals, workload)])
    return [(load, list(at_speed(arrivals, load * speed))) for load in loads]


def _live(
    urls: tuple[str, str],
    configs: Sequence[Path],
    overrides: tuple[str, ...],
    keys: Sequence[str],
    arrivals: list[Arrival],
    workload: Workload,
    seeds: int,
) -> Result:
    """The result of asking two servers."""
    targets = [targets_of(load_config(path, os.environ, overrides)) for path in configs]
    promised = targets or [{}, {}]
    arms: list[Arm] = [
        LiveArm(name, url, Settings(keys=_keys(keys), targets=promise))
        for name, url, promise in zip(_names(urls, configs), urls, promised, strict=True)
    ]
    with bar("runs", len(arms) * (1 + seeds)) as tick:
        return run_live(Experiment(arms, arrivals, workload), seeds, tick)


def _names(urls: tuple[str, str], configs: Sequence[Path]) -> list[str]:
    if configs and len(configs) != len(urls):
        raise BadConfiguration(Problem("", "two servers have two configurations, or none is said"))
    if configs:
        return names(configs)
    return (
        list(urls)
        if len(set(urls)) == len(urls)
        else [f"{url} ({n})" for n, url in enumerate(urls, 1)]
    )


def _keys(texts: Sequence[str]) -> Mapping[str, str]:
    """API keys by tenant. Raises BadConfiguration for what is no TENANT=KEY."""
    pairs = [text.partition("=") for text in texts]
    if not all(equals and key for _, equals, key in pairs):
        raise BadConfiguration(Problem("--key", "expected TENANT=KEY"))
    return {tenant: key for tenant, _, key in pairs}


def _show(answer: Answer, form: str | None, html: Path | None) -> None:
    if html is not None:
        reports.write(report(answer, shlex.join(["octavo", *sys.argv[1:]])), html)
    if form == "json":
        click.echo(orjson.dumps(answer.to_json(), option=orjson.OPT_INDENT_2))
    elif form == "markdown":
        click.echo(markdown(answer))
    else:
        Console().print(*tables(answer), sep="\n")


def _gate(answer: Answer, gates: Sequence[Row]) -> None:
    """Exit where a figure that must not be worse is worse."""
    found = answer.worse(gates)
    for pair, each in found:
        at = "" if pair.load is None else f" at {pair.load:g} of capacity"
        words = f"{pair.second} is worse than {pair.first} in {each.row}{at}"
        click.echo(f"{words}: {each.estimate.mean:+.3g}", err=True)
    if found:
        raise click.exceptions.Exit(WORSE_EXIT_CODE)
