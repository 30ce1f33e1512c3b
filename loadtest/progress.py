"""A bar on stderr while something takes long, and only if that is a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)


@contextmanager
def bar(what: str, total: float | None) -> Iterator[Callable[[], None]]:
    """Gives a function to call once for each that has ended. total: None if nobody knows."""
    with _shown(what, total, TaskProgressColumn()) as (progress, task):
        yield lambda: progress.advance(task)


@contextmanager
def bar_up_to(what: str, total: float) -> Iterator[Callable[[float], None]]:
    """Gives a function to call with how far it is."""
    with _shown(what, total) as (progress, task):
        yield lambda done: progress.update(task, completed=done)


@contextmanager
def _shown(
    what: str, total: float | None, *more: ProgressColumn
) -> Iterator[tuple[Progress, TaskID]]:
    console = Console(stderr=True)
    columns = TextColumn(what), BarColumn(), *more, TimeRemainingColumn()
    disable = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=disable) as progress:
        yield progress, progress.add_task(what, total=total)
