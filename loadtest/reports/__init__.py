"""Reports: one self-contained HTML file each, of tables and charts, and how to do it again."""

from loadtest.reports.charts import Axis, Chart, Mark, Series
from loadtest.reports.figures import (
    cdf,
    histogram,
    percentiles_over,
    service,
    timeline,
    timeline_steps,
)
from loadtest.reports.page import Origin, Report, Section, Text, Tiles, here, write
from loadtest.reports.tables import Column, Interval, Table, Verdict, Word, decision_table

__all__ = [
    "Axis",
    "Chart",
    "Column",
    "Interval",
    "Mark",
    "Origin",
    "Report",
    "Section",
    "Series",
    "Table",
    "Text",
    "Tiles",
    "Verdict",
    "Word",
    "cdf",
    "decision_table",
    "here",
    "histogram",
    "percentiles_over",
    "service",
    "timeline",
    "timeline_steps",
    "write",
]
