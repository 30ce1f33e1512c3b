"""The charts that reports about serving share: distributions, percentiles over load, timelines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from loadtest.reports.charts import Axis, Chart, Mark, Series, Style

Samples = Sequence[float] | npt.NDArray[np.float64]

CDF_POINTS: Final = 400
BINS: Final = 40


def cdf(
    title: str,
    samples: Mapping[str, Samples],
    *,
    label: str = "",
    unit: str = "s",
    log: bool = False,
    marks: Sequence[Mark] = (),
    note: str = "",
) -> Chart:
    """Empirical distribution functions: which share of the samples is at most x.

    samples: by the name of each line; of many samples the line goes through quantiles.
    log: a logarithmic x axis, on which samples that are not positive are not drawn.
    """
    series = [Series(name, *_quantiles(values, log)) for name, values in samples.items()]
    x, y = Axis(label or title, unit, log=log), Axis("share of samples", "ratio", most=1.0)
    return Chart(title, x, y, series, marks, note=note)


def histogram(
    title: str,
    samples: Mapping[str, Samples],
    *,
    label: str = "",
    unit: str = "s",
    bins: int = BINS,
    note: str = "",
) -> Chart:
    """How often samples fall into each of `bins` equal intervals, as shares of each set.

    What is beyond the 99.5th percentile of all is in the last interval, and the note says so.
    """
    arrays = {name: np.asarray(values, np.float64) for name, values in samples.items()}
    everything = np.concatenate([*arrays.values(), np.empty(0)])
    if not len(everything):
        return Chart(title, Axis(label or title, unit), Axis("share", "ratio"), [], note=note)
    low, high = float(everything.min()), float(np.percentile(everything, 99.5))
    edges = np.linspace(low, high if high > low else low + 1e-9 + abs(low), bins + 1)
    series = []
    for name, values in arrays.items():
        counts, _ = np.histogram(np.clip(values, edges[0], edges[-1]), edges)
        shares = [*(counts / max(1, len(values))).tolist(), 0.0]
        series.append(Series(name, edges.tolist(), shares, "area"))
    if high < everything.max():
        note = f"{note} What is beyond is in the last interval.".strip()
    return Chart(title, Axis(label or title, unit), Axis("share", "ratio"), series, note=note)


def percentiles_over(
    title: str,
    load: Axis,
    loads: Sequence[float],
    lines: Mapping[str, Sequence[float | None]],
    *,
    unit: str = "s",
    bounds: Mapping[str, tuple[Sequence[float | None], Sequence[float | None]]] | None = None,
    marks: Sequence[Mark] = (),
    log: bool = False,
    note: str = "",
) -> Chart:
    """Figures over load: a line for each, such as p50 and p99, with its bounds where given.

    loads: ascending. lines: by name, a value for each load. bounds: lower and upper, by name.
    """
    given = bounds or {}
    none: tuple[Sequence[float | None], Sequence[float | None]] = ((), ())
    series = [
        Series(name, loads, values, "line", *given.get(name, none))
        for name, values in lines.items()
    ]
    return Chart(title, load, Axis(title, unit, log=log), series, marks, note=note)


def timeline(
    title: str,
    times: Sequence[float],
    lines: Mapping[str, Sequence[float | None]],
    *,
    y: Axis | None = None,
    stacked: bool = False,
    marks: Sequence[Mark] = (),
    note: str = "",
) -> Chart:
    """What was so at each time, in seconds: lines, or areas one upon the other."""
    style: Style = "area" if stacked else "line"
    series = [Series(name, times, values, style) for name, values in lines.items()]
    seconds = Axis("time", "s")
    return Chart(
        title, seconds, y or Axis(title), series, marks, stacked=stacked, wide=True, note=note
    )


def timeline_steps(
    title: str,
    lines: Mapping[str, tuple[Sequence[float], Sequence[float | None]]],
    *,
    y: Axis | None = None,
    marks: Sequence[Mark] = (),
    note: str = "",
) -> Chart:
    """What held from each time until the next: (times, values) by name, each with its own."""
    series = [Series(name, times, values, "step") for name, (times, values) in lines.items()]
    return Chart(title, Axis("time", "s"), y or Axis(title), series, marks, wide=True, note=note)


def service(
    times: Mapping[str, Samples],
    amounts: Mapping[str, Samples] | None = None,
    *,
    title: str = "Service received by each tenant",
    unit: str = "tokens",
    note: str = "",
) -> Chart:
    """What each tenant got so far: the times in seconds at which it got something, ascending, and
    how much (1 where not given). Parallel lines are fair shares; the gap between them is what one
    got and the other did not."""
    series = []
    for tenant, at in times.items():
        each = np.ones(len(at)) if amounts is None else np.asarray(amounts[tenant], np.float64)
        moments, total = np.asarray(at, np.float64), np.cumsum(each)
        kept = np.unique(np.linspace(0, len(moments) - 1, CDF_POINTS).astype(int))
        if len(moments):
            x, y = moments[kept].tolist(), total[kept].tolist()
            series.append(Series(tenant, [x[0], *x], [0.0, *y], "step"))
    return Chart(title, Axis("time", "s"), Axis(title, unit), series, wide=True, note=note)


def _quantiles(values: Samples, log: bool) -> tuple[list[float], list[float | None]]:
    """Points of an empirical distribution function, with both ends."""
    ordered = np.sort(np.asarray(values, np.float64))
    if log:
        ordered = ordered[ordered > 0]
    count = len(ordered)
    if not count:
        return [], []
    ranks = np.unique(np.linspace(0, count - 1, CDF_POINTS).astype(int))
    return ordered[ranks].tolist(), ((ranks + 1) / count).tolist()
