"""Check that a scheduling policy keeps the engine's invariants."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click
import orjson
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from app.commands.options import policy_option
from app.policy_loader import load_policy
from loadtest.conformance.judge import judge
from loadtest.conformance.patience import DidNotReturnError, patience
from loadtest.conformance.tables import table
from policies.base import Policy, Services


@click.command()
@click.argument("name", metavar="POLICY")
@click.option(
    "--params", multiple=True, metavar="KEY=VALUE", help="A parameter of it; may be repeated."
)
@click.option("--seed", default=0, show_default=True, help="Of the workloads, and the policy's.")
@click.option(
    "--workloads",
    default=48,
    type=click.IntRange(1),
    show_default=True,
    help="How many random workloads to play.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def conform(name: str, params: tuple[str, ...], seed: int, workloads: int, as_json: bool) -> None:
    """Check that a policy, built in or yours, keeps the engine's invariants.

    POLICY is an installed one, or package.module:Class. It schedules random workloads in small
    houses (groups, beam searches, shared prefixes, clients that leave, classes with limits, host
    memory, reserved blocks, two steps in flight, swaps to fcfs and back), in virtual time. Whatever
    it does, the engine keeps its invariants (ARCHITECTURE.md); the policy fails under each that the
    engine had to save from it:

    \b
      E4        a second run with the same seed decided otherwise
      E5        its victim, or whom it displaced, was the lowest ticket for no reason but its
                age; a hold was cut short; a class that can never hold the request
      E8        it picked nobody, or granted nothing, and nobody would have run
      E11       it raised, took too much CPU time, did not return, wrote to a view, named a
                request that does not exist, or said what means nothing
      O(log n)  a step costs more the more requests wait

    Admissions of the oldest (E10), grants (E13) and vetoes (E5) that a good policy may need too are
    reported. Takes some ten seconds.

    \b
    Exit code 0: it conforms; 1: it does not; 2: there is no such policy or parameter.

    \b
    Examples:
      octavo conform fair-share
      octavo conform my_package.policies:Mine --params window=8 --json
      octavo conform slo --workloads 500 --seed 7
    """
    with patience() as begin_anew:
        try:
            scheduler = policy_option(name, params, named="POLICY")

            def make(*, services: Services) -> Policy:
                return load_policy(scheduler, services)

            with _progress(workloads) as tick:
                verdict = judge(
                    make, name, seed=seed, workloads=workloads, tick=tick, begins=begin_anew
                )
        except DidNotReturnError as error:
            raise click.ClickException(f"{name} cannot be judged: {error}") from None
    if as_json:
        click.echo(orjson.dumps(verdict.as_json(), option=orjson.OPT_INDENT_2))
    else:
        Console().print(table(verdict))
    sys.exit(0 if verdict.passed else 1)


@contextmanager
def _progress(workloads: int) -> Iterator[Callable[[], None]]:
    """A bar on stderr while workloads are played, and only if that is a terminal."""
    console = Console(stderr=True)
    columns = TextColumn("workloads"), BarColumn(), TaskProgressColumn()
    disable = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=disable) as progress:
        task = progress.add_task("workloads", total=workloads)
        yield lambda: progress.advance(task)
