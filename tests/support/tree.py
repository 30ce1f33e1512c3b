"""The tree of the house in README: every file with the first line of its docstring.

`python tests/support/tree.py` writes it into README.md; a test notices when it is out of date.
"""

from __future__ import annotations

import ast
import json
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
BEGIN, END = "<!-- tree -->\n```\n", "```\n<!-- /tree -->"

TOP_LEVEL = {
    ".dockerignore": "What images are built from.",
    ".ci/run": "What CI runs: set-up, checks, tests.",
    "ARCHITECTURE.md": "The parts, the seams, what always holds.",
    "CHANGELOG.md": "What changed for users.",
    "CONTRIBUTING.md": "How to add a policy, and how the code is written and tested.",
    "LICENSE": "Apache-2.0.",
    "Makefile": "Every command.",
    "SECURITY.md": "What is defended how, and what is not.",
    "config.yaml": "Every knob with its default.",
    "pyproject.toml": "Packages, pins, linters, import contracts.",
}
FOLDERS = {
    "app": "HTTP, text, configuration, command line. Never torch.",
    "deploy": "Images, compose, dashboards and alerts, Kubernetes: samples to start from.",
    "docs": "For people who use Octavo.",
    "engine": "Requests, KV blocks, scheduler, backends. Never asyncio.",
    "loadtest": "Load tests and simulations: over HTTP, or in virtual time.",
    "policies": "Scheduling policies and their contract.",
    "tests": "Mirror the packages; what they share is in tests/support.",
}

SILENT = {
    "app/page": "The page at /, as it is served: no build step.",
    "app/page/blocks.svg": "A map of blocks, to look at before there is one.",
    "app/page/icon.svg": "Its icon.",
    "app/page/vendor": "uPlot, which draws the charts, as it is published.",
    "app/page/vendor/uPlot.LICENSE": "MIT.",
    "app/page/vendor/uPlot.iife.min.js": "Its code.",
    "app/page/vendor/uPlot.min.css": "Its style sheet.",
    "app/text/calibration.txt": "The text itself.",
    "deploy/README.md": "How to use each.",
    "deploy/grafana": "What Grafana shows.",
    "deploy/grafana/dashboards": "One of them.",
    "deploy/grafana/provisioning": "What it finds at its start.",
    "deploy/grafana/provisioning/dashboards": "Where dashboards lie.",
    "deploy/grafana/provisioning/datasources": "Where numbers come from.",
    "deploy/kubernetes": "Manifests; kubectl apply -k.",
    "deploy/kubernetes/samples": "For clusters with KEDA, or an inference gateway.",
    "deploy/prometheus": "What Prometheus scrapes, and what it warns of.",
    "docs/clients.md": "What to put where, in seven clients and two load generators.",
    "docs/metrics.md": "Every metric: its name, type and labels, and what it says.",
    "docs/overload.md": "Who is turned away when too many come, and what they are told.",
    "docs/page-charts.png": "What the page draws of the last two minutes.",
    "docs/page.png": "The page: a chat, and the engine at work.",
    "docs/tensor-parallel.md": "One model in several processes: how to start and end them.",
    "docs/traces.md": "Spans for OpenTelemetry: how to have them, and what they say.",
    "loadtest/ab/examples": "Comparisons that README shows, each a folder.",
    "loadtest/ab/examples/allocation": "Blocks as tokens come, and blocks reserved.",
    "loadtest/ab/examples/batching": "Continuous batching, and static batches.",
    "loadtest/ab/examples/decode-priority": "Decodes first, and fixed budgets of a step.",
    "loadtest/ab/examples/fair-share": "Heavy tenants beside light ones.",
    "loadtest/ab/examples/slo": "Two classes with targets.",
    "loadtest/RESULTS.md": "Beside other engines: tables made from peers/results.json.",
    "engine/native/src": "The C++ of it, compiled once for each instruction set.",
}
"""What cannot say for itself what it is."""


def files() -> list[str]:
    """Files under version control or about to be, as paths from the root."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return sorted(path for path in listed.splitlines() if (ROOT / path).exists())


def render() -> str:
    """The tree as text, packages first."""
    lines: list[str] = []
    paths = files()
    for folder, says in sorted(FOLDERS.items()):
        lines.append(_line(f"{folder}/", says))
        if folder != "tests":
            inside = [path for path in paths if path.startswith(f"{folder}/")]
            lines.extend(_inside(inside))
    lines.extend(_line(name, says) for name, says in sorted(TOP_LEVEL.items()))
    return "\n".join(lines) + "\n"


def _inside(paths: list[str]) -> list[str]:
    """A folder's files, then its sub-folders with theirs."""
    lines: list[str] = []
    seen: set[str] = set()
    for path in sorted(paths, key=lambda p: (p.count("/") > 1, p)):
        parts = path.split("/")
        for depth in range(2, len(parts)):
            folder = "/".join(parts[:depth])
            if folder not in seen:
                seen.add(folder)
                lines.append(_line("  " * (depth - 1) + parts[depth - 1] + "/", _says(folder)))
        if parts[-1] != "__init__.py":
            lines.append(_line("  " * (len(parts) - 1) + parts[-1], _says(path)))
    return lines


def _says(path: str) -> str:
    """The first line of a docstring or comment, or sentence of C++; what a data file is about."""
    if path in SILENT:
        return SILENT[path]
    file = ROOT / path
    source = file / "__init__.py" if file.is_dir() else file
    if source.suffix == ".json":
        return _about(json.loads(source.read_text()))
    if source.suffix in (".h", ".cpp"):
        comment = source.read_text().split("\n#")[0].replace("\n//", "").removeprefix("// ")
        return comment.partition(". ")[0].strip().rstrip(".") + "."
    if source.suffix in (".js", ".css", ".html"):
        return _first_comment(source.read_text())
    if source.suffix in (".yaml", ".yml") or source.stem == "Dockerfile":
        return source.read_text().partition("\n")[0].removeprefix("# ")
    if source.suffix != ".py":
        return ""
    docstring = ast.get_docstring(ast.parse(source.read_text())) or ""
    return docstring.partition("\n")[0]


def _first_comment(text: str) -> str:
    """What a file of the page begins with, in whatever way its language has."""
    line = next(line for line in text.splitlines() if line.startswith(("// ", "/* ", "<!-- ")))
    return (
        line.removeprefix("// ")
        .removeprefix("/* ")
        .removeprefix("<!-- ")
        .removesuffix(" */")
        .removesuffix(" -->")
    )


def _about(data: dict[str, object]) -> str:
    return str(data.get("about") or data.get("description", ""))


def _line(name: str, says: str) -> str:
    return f"{name:<25} {says}".rstrip()


def write() -> None:
    """Put the current tree into README.md."""
    readme = ROOT / "README.md"
    before, rest = readme.read_text().split(BEGIN)
    _, after = rest.split(END)
    readme.write_text(before + BEGIN + render() + END + after)


if __name__ == "__main__":
    write()
