"""Options that several commands share: what is offered, and what a step takes."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from app.config import LoadedConfig, load_with_sources
from loadtest.traces.offer import Offer

R = TypeVar("R")


class FiniteRange(click.FloatRange):
    """A range that NaN and infinity are not in."""

    def convert(
        self, value: Any, param: click.Parameter | None, context: click.Context | None
    ) -> float:
        number = float(super().convert(value, param, context))
        if not math.isfinite(number):
            self.fail(f"{number} is no finite number.", param, context)
        return number


POSITIVE: Final = FiniteRange(min=0, min_open=True)


class NewFileType(click.ParamType[Path]):
    """A file that will be written, tried at once: nobody measures for minutes to learn it then.

    folders: whether those that it is in are made.
    """

    name = "file"

    def __init__(self, *, folders: bool = True) -> None:
        self._folders = folders

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        path = Path(value)
        new = not path.exists()
        try:
            if self._folders:
                path.parent.mkdir(parents=True, exist_ok=True)
            path.open("a").close()
            if new:
                path.unlink()
        except OSError as error:
            self.fail(f"{path} cannot be written: {error.strerror}", param, ctx)
        return path


NEW_FILE: Final = NewFileType()

TRACE_HELP: Final = (
    "Who arrives when: a tenant CSV (arrival_s, tenant, prompt_tokens, output_tokens, and if you"
    " like class, priority, max_tokens), an Azure CSV, Mooncake JSONL, or a CSV of lengths alone"
    " (num_prefill_tokens, num_decode_tokens); plain or gzipped. Or a recording: its directory."
)


def offer_options(command: Callable[..., R]) -> Callable[..., R]:
    """Give a click command --trace and how fast it is replayed; `command` gets an `Offer` first."""

    @click.option(
        "--trace",
        "path",
        required=True,
        type=click.Path(path_type=Path),
        metavar="FILE",
        help=TRACE_HELP,
    )
    @click.option(
        "--speed",
        default=1.0,
        type=POSITIVE,
        show_default=True,
        help="How many times as fast requests arrive.",
    )
    @click.option(
        "--rate", type=POSITIVE, metavar="R", help="How many requests arrive in a second."
    )
    @click.option(
        "--burstiness",
        type=POSITIVE,
        metavar="B",
        help="Draw the arrivals anew, with gaps of a gamma distribution of this shape: 1 is a"
        " Poisson process, less is burstier.  [default: as in the trace; 1 for lengths alone]",
    )
    @click.option(
        "--even",
        is_flag=True,
        help="Spread requests of the same time up to the next, where a trace's times were rounded.",
    )
    @functools.wraps(command)
    def wrapped(
        path: Path,
        speed: float,
        rate: float | None,
        burstiness: float | None,
        even: bool,
        **kwargs: Any,
    ) -> R:
        return command(Offer(path, speed, rate, burstiness, even), **kwargs)

    return wrapped


def loaded_if_asked(file: Path | None, overrides: tuple[str, ...]) -> LoadedConfig | None:
    """The configuration, for who gives --config or --set; None for who gives neither."""
    if file is None and not overrides:
        return None
    return load_with_sources(file, os.environ, overrides)
