"""compute-sanitizer over the smallest case, if it is on PATH."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator

from tests.gpu.bed import Bed
from tests.gpu.findings import Finding

SMALLEST = "smallest"
"""The part that is looked at: `tests.gpu.parts.smallest`."""

MOST_S = 75


def run(bed: Bed) -> Iterator[Finding]:
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer is None:
        yield Finding("sanitizer", "compute-sanitizer", "not on PATH: nothing was looked at")
        return
    command = [sanitizer, "--tool", "memcheck", sys.executable, "-m", "tests.gpu.part", SMALLEST]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=MOST_S, check=False)
    except subprocess.TimeoutExpired:
        yield Finding("sanitizer", "memcheck", f"not done after {MOST_S} s", fault=True)
        return
    said = re.search(r"ERROR SUMMARY: (\d+) errors?", done.stdout + done.stderr)
    if said is None:
        yield Finding("sanitizer", "memcheck", (done.stdout + done.stderr)[-400:], fault=True)
        return
    yield Finding("sanitizer", "errors of memory", float(said[1]), at_most=0.0)
