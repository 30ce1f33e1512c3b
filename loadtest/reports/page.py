"""The report itself: a title, the question it answers, where it comes from, and sections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any, Final, Protocol

from loadtest.machine import cpu, versions
from loadtest.reports.data import DataBlock, as_script

_HERE: Final = Path(__file__).parent
_VENDOR: Final = _HERE.parents[1] / "app" / "page" / "vendor"

POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
"""A report asks nobody for anything, wherever it is opened."""


class Block(Protocol):
    """What a section consists of: a text, tiles, a table, a chart."""

    def html(self, data: DataBlock) -> str: ...


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph."""

    words: str

    def html(self, data: DataBlock) -> str:
        return f'<p class="text wide">{escape(self.words)}</p>'


@dataclass(frozen=True, slots=True)
class Tiles:
    """A few figures, large: (what it is, the figure, what it is of)."""

    figures: Sequence[tuple[str, str, str]]

    def html(self, data: DataBlock) -> str:
        tiles = "".join(
            f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd>"
            f'<dd class="of">{escape(of)}</dd></div>'
            for name, value, of in self.figures
        )
        return f'<dl class="tiles wide">{tiles}</dl>'


@dataclass(frozen=True, slots=True)
class Section:
    """A heading, a sentence, and blocks; charts that are not wide stand two abreast."""

    heading: str
    blocks: Sequence[Block]
    lead: str = ""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a report comes from: the exact command, versions by package, the machine by what is
    said of it, and when, if that is known. `here` has them for this process."""

    command: str
    versions: Mapping[str, str] = field(default_factory=dict)
    machine: Mapping[str, str] = field(default_factory=dict)
    made: str = ""


def here(command: str, made: str = "", **machine: str) -> Origin:
    """The origin of what was measured on this machine. machine: what else is to be said of it."""
    processor = cpu()
    cores = f"{processor['cores']} cores"
    flags = f", {' '.join(processor['flags'])}" if processor["flags"] else ""
    return Origin(
        command, versions(), {"processor": f"{processor['model']}, {cores}{flags}", **machine}, made
    )


@dataclass(frozen=True, slots=True)
class Report:
    """A report. The same one has the same bytes, whenever and wherever it is made.

    question: what it answers. answer: in a sentence, if there is one. figures: the same as data,
    for scripts, which find it as JSON in the element `figures`.
    """

    title: str
    question: str
    origin: Origin
    sections: Sequence[Section]
    answer: str = ""
    figures: Mapping[str, Any] | None = None

    def html(self) -> str:
        """The whole page, which needs no other file."""
        data = DataBlock()
        body = "".join(
            _section(number, section, data) for number, section in enumerate(self.sections, start=1)
        )
        figures = "" if self.figures is None else as_script("figures", self.figures)
        return "\n".join(
            (
                "<!doctype html>",
                f'<html lang="en"><head><meta charset="utf-8"><title>{escape(self.title)}</title>',
                f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
                '<meta name="viewport" content="width=device-width, initial-scale=1">',
                '<meta name="color-scheme" content="light dark">',
                f"<style>{_style()}</style></head><body>",
                self._head(),
                f"<main>{body}</main>",
                _origin(self.origin),
                data.html(),
                figures,
                f"<script>{_script()}</script>",
                "</body></html>\n",
            )
        )

    def _head(self) -> str:
        answer = f'<p class="answer">{escape(self.answer)}</p>' if self.answer else ""
        links = "".join(
            f'<li><a href="#s{number}">{escape(section.heading)}</a></li>'
            for number, section in enumerate(self.sections, start=1)
        )
        contents = f"<nav><ul>{links}</ul></nav>" if len(self.sections) > 2 else ""
        made = f'<p class="made">{escape(self.origin.made)}</p>' if self.origin.made else ""
        return (
            f'<header><div class="over"><p class="house">Octavo</p>{made}'
            '<button type="button" id="theme" hidden>light / dark</button></div>'
            f'<h1>{escape(self.title)}</h1><p class="question">{escape(self.question)}</p>'
            f"{answer}<noscript><p>Tables are complete; charts need scripts.</p></noscript>"
            f"{contents}</header>"
        )


def write(report: Report, path: Path) -> Path:
    """Write a report into a file, with its folders; returns the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(report.html(), encoding="utf-8")
    return path


def _section(number: int, section: Section, data: DataBlock) -> str:
    lead = f'<p class="lead">{escape(section.lead)}</p>' if section.lead else ""
    blocks = "".join(block.html(data) for block in section.blocks)
    return (
        f'<section id="s{number}"><h2>{escape(section.heading)}</h2>{lead}'
        f'<div class="blocks">{blocks}</div></section>'
    )


def _origin(origin: Origin) -> str:
    facts = {
        **origin.machine,
        "versions": ", ".join(f"{name} {version}" for name, version in origin.versions.items()),
    }
    rows = "".join(
        f"<dt>{escape(name)}</dt><dd>{escape(says)}</dd>" for name, says in facts.items() if says
    )
    return (
        f"<footer><h2>Do it again</h2><pre><code>{escape(origin.command)}</code></pre>"
        f"<dl>{rows}</dl></footer>"
    )


def _style() -> str:
    vendor = (_VENDOR / "uPlot.min.css").read_text(encoding="utf-8")
    return vendor + (_HERE / "report.css").read_text(encoding="utf-8")


def _script() -> str:
    """uPlot with its licence, and what draws with it."""
    licence = (_VENDOR / "uPlot.LICENSE").read_text(encoding="utf-8").strip()
    vendor = (_VENDOR / "uPlot.iife.min.js").read_text(encoding="utf-8")
    return f"/*\n{licence}\n*/\n{vendor}\n{(_HERE / 'report.js').read_text(encoding='utf-8')}"
