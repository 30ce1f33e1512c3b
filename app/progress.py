"""A bar for what takes long at the start, on a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bars

from engine.backends import Progress


@contextmanager
def bar(console: Console, what: str) -> Iterator[Progress]:
    """Something to tell how much of `what` is done; drawn from the first word on."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    with Bars(*columns, console=console, disable=not console.is_terminal) as bars:
        task = bars.add_task(what, total=None, visible=False)

        def tell(done: int, of: int) -> None:
            bars.update(task, completed=done, total=of, visible=True)

        yield tell
