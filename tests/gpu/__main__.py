"""Ask a GPU all that was prepared, in some minutes: `make test-gpu`.

    python -m tests.gpu [--rehearse] [--only PART] [--folder FOLDER] [--results RESULTS.md]
    python -m tests.gpu --take FOLDER --results RESULTS.md     # what another machine found

Needs no set-up and no network. Each part is a process with a budget; whatever one does, the next is
run. Findings are printed and written to FOLDER/findings.jsonl as they come, and at the end as a
section to FOLDER/section.md and into RESULTS.md.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TextIO

from tests.gpu.findings import Finding, put_into, read_line, section, table


@dataclass(frozen=True, slots=True)
class Part:
    """seconds: after which it is ended, whatever it has not said by then."""

    name: str
    seconds: float


PARTS = (
    Part("machine", 45),
    Part("parity", 90),
    Part("sampling", 30),
    Part("replay", 45),
    Part("decode", 100),
    Part("prefill", 45),
    Part("workload", 110),
    Part("peers", 90),
    Part("sanitizer", 80),
)
ALL_S = 470
"""Seconds for all parts together: what has not begun by then is left out."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the parts; the exit code is 1 if one failed, or did not keep what was promised."""
    options = _options(arguments)
    if options.take is not None:
        put_into(options.results, (options.take / "section.md").read_text(encoding="utf-8"))
        return 0
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.rehearse:
        print("A rehearsal on a stand-in: nothing is measured on a GPU.", flush=True)
    findings: list[Finding] = []
    with (options.folder / "findings.jsonl").open("w", encoding="utf-8") as file:
        for finding in _findings(options):
            findings.append(finding)
            print(finding.line(), file=file, flush=True)
            _print(finding)
    date = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    text = section(findings, date, options.rehearse)
    (options.folder / "section.md").write_text(text, encoding="utf-8")
    if options.results is not None:
        put_into(options.results, text)
    print(f"\n{table(findings)}", flush=True)
    return int(any(finding.passed is False for finding in findings))


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu")
    parser.add_argument("--rehearse", action="store_true", help="on the stand-in, with tiny shapes")
    parser.add_argument("--only", action="append", choices=[part.name for part in PARTS])
    parser.add_argument("--folder", type=Path, default=Path("build/gpu/found"))
    parser.add_argument("--results", type=Path, help="a file to put the section into")
    parser.add_argument("--take", type=Path, help="the folder of a run elsewhere, for --results")
    options = parser.parse_args(arguments)
    if options.take is not None and options.results is None:
        parser.error("--take needs --results")
    return options


def _findings(options: argparse.Namespace) -> Iterator[Finding]:
    """What all parts find, one after the other."""
    end = time.monotonic() + ALL_S
    for part in PARTS:
        if options.only and part.name not in options.only:
            continue
        seconds = min(part.seconds, end - time.monotonic())
        if seconds <= 0:
            yield Finding(part.name, "left out", f"{ALL_S} s were over", fault=True)
            continue
        command = [sys.executable, "-m", "tests.gpu.part", part.name]
        command += ["--rehearse"] * options.rehearse
        yield from findings_of(part.name, command, seconds)


def findings_of(name: str, command: Sequence[str], seconds: float) -> Iterator[Finding]:
    """What a part finds that `command` runs, and what became of it, within so many seconds."""
    started = time.monotonic()
    said: list[str] = []
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | _no_compiling(),
    ) as process:
        listener = threading.Thread(target=_listen, args=(process.stderr, said))
        listener.start()
        late = threading.Timer(seconds, process.kill)
        late.start()
        for line in process.stdout or ():
            finding = read_line(line)
            if finding is None:
                said.append(line)
            else:
                yield finding
        code = process.wait()
        listener.join()
        late.cancel()
    took = time.monotonic() - started
    if code == -signal.SIGKILL and took >= seconds:
        yield Finding(name, "ended", f"not done after {seconds:.0f} s", fault=True)
    elif code:
        yield Finding(name, f"failed with {code}", " ".join(said[-12:])[-900:], fault=True)
    yield Finding(name, "took", took, "s")


def _no_compiling() -> dict[str, str]:
    """What keeps FlashInfer from compiling, where kernels were carried along: a module that is
    missing is an error then, and not minutes of waiting."""
    found = find_spec("flashinfer")
    folders = found.submodule_search_locations if found is not None else None
    carried = [so for folder in folders or () for so in Path(folder, "data/aot").glob("*/*.so")]
    return {"FLASHINFER_DISABLE_JIT": "1"} if carried else {}


def _listen(stream: TextIO | None, said: list[str]) -> None:
    for line in stream or ():
        said.append(line)
        print(line, end="", file=sys.stderr, flush=True)


def _print(finding: Finding) -> None:
    mark = {None: " ", True: "+", False: "!"}[finding.passed]
    print(f"{mark} {finding.part}: {finding.name}: {finding.value} {finding.unit}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
