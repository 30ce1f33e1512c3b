"""A bar on stderr while something ends one by one, and only if that is a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn


@contextmanager
def bar(what: str, total: float | None) -> Iterator[Callable[[], None]]:
    """Gives a function to call once for each that has ended. total: None if nobody knows."""
    console = Console(stderr=True)
    columns = TextColumn(what), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()
    disable = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=disable) as progress:
        task = progress.add_task(what, total=total)
        yield lambda: progress.advance(task)
