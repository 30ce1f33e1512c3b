"""The script for a GPU, rehearsed: each part runs on the stand-in, and none hides another."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support.cpu_device import CPUDevice

from engine.backends.cuda.assembly import Kernels
from engine.models.config import ModelConfig
from tests.gpu.__main__ import ALL_S, PARTS, findings_of, main
from tests.gpu.bed import bed
from tests.gpu.findings import Finding, put_into, read_line, section, table
from tests.gpu.parts import decode, machine, parity, prefill, sampling, smallest, workload
from tests.gpu.sizes import LLAMA_8B

ROOT = Path(__file__).parents[2]

THERE = {
    *("engine", "policies", "tests", "support"),
    *("torch", "triton", "numpy", "flashinfer", "tvm_ffi"),
    *("sympy", "mpmath", "networkx", "jinja2", "markupsafe", "fsspec", "filelock"),  # torch's own
    *("typing_extensions", "torchgen", "functorch", "sitecustomize"),
}
"""What can be imported on the machine with the GPU, beside Python's own modules."""

REFUSES = f"""
import importlib.abc, sys

class Refusing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        top = name.partition(".")[0]
        if top not in sys.stdlib_module_names and top not in {THERE!r}:
            raise ModuleNotFoundError(f"{{name}} is not there", name=name)

sys.meta_path.insert(0, Refusing())
"""


@pytest.mark.parametrize(
    "part", [machine, prefill, sampling, smallest, workload], ids=lambda part: part.__name__
)
def test_a_part_finds_something_on_the_stand_in(part) -> None:
    findings = list(part.run(bed(rehearse=True)))
    assert findings
    assert not [each for each in findings if each.passed is False]


@pytest.mark.parametrize("name", [part.name for part in PARTS])
def test_each_part_is_a_module(name: str) -> None:
    assert callable(importlib.import_module(f"tests.gpu.parts.{name}").run)


@pytest.mark.slow
def test_all_of_it_runs_with_nothing_but_what_is_on_the_machine(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(REFUSES)
    path = os.pathsep.join([str(tmp_path), str(ROOT), str(ROOT / "tests")])
    command = [sys.executable, "-m", "tests.gpu", "--rehearse", "--folder", str(tmp_path / "out")]
    environ = os.environ | {"PYTHONPATH": path}
    done = subprocess.run(
        command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    lines = (tmp_path / "out/findings.jsonl").read_text().splitlines()
    findings = [read_line(line) for line in lines]
    assert {each.part for each in findings if each.name == "took"} == {p.name for p in PARTS}
    assert not [each for each in findings if each.fault]
    assert done.stdout.startswith("A rehearsal on a stand-in: nothing is measured on a GPU.")
    assert "nothing here was measured on a GPU" in (tmp_path / "out/section.md").read_text()


class Replayed:
    """Work that is done again at each replay."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.replay = work
        work()


@pytest.mark.slow
@pytest.mark.parametrize("part", [parity, decode], ids=lambda part: part.__name__)
def test_what_a_rehearsal_leaves_out_runs_in_tritons_interpreter(part, monkeypatch) -> None:
    """Graphs are not watched here: the interpreter has buffers of its own at each replay."""
    from support.interpreter import interpreted

    from engine.backends.cuda.triton_ops import TritonOps

    monkeypatch.setattr(CPUDevice, "capture", lambda device, work: Replayed(work))
    stand_in = bed(rehearse=True)

    def kernels(config: ModelConfig) -> Kernels:
        return replace(stand_in.kernels(config), ops=TritonOps())

    with interpreted():
        findings = list(part.run(replace(stand_in, kernels=kernels, rehearsed=False)))
    names = " ".join(each.name for each in findings)
    assert "Triton" in names
    assert "float8" in names or "fp8" in names
    assert not [each for each in findings if each.passed is False and "floor" not in each.name]


def said_by(script: str, seconds: float = 60.0) -> list[Finding]:
    return list(findings_of("part", [sys.executable, "-c", script], seconds))


def test_what_a_part_said_before_it_failed_is_kept_and_so_is_why() -> None:
    line = Finding("part", "first", 1.0).line()
    first, failed, took = said_by(f"print({line!r}); print('noise'); raise SystemExit('broken')")
    assert first == Finding("part", "first", 1.0)
    assert (failed.name, failed.passed) == ("failed with 1", False)
    assert "broken" in failed.value
    assert took.unit == "s"


def test_a_part_that_does_not_end_is_ended() -> None:
    line = Finding("part", "first", 1.0).line()
    script = f"import threading; print({line!r}, flush=True); threading.Event().wait()"
    first, ended, _ = said_by(script, seconds=2.0)
    assert first.name == "first"
    assert (ended.value, ended.passed) == ("not done after 2 s", False)


def test_all_parts_together_take_less_than_eight_minutes() -> None:
    assert ALL_S < 8 * 60
    assert [part.name for part in PARTS][:5] == [
        *("machine", "parity", "sampling", "replay", "decode")
    ]


def test_the_large_model_is_llamas() -> None:
    from engine.models.shapes import expected_shapes

    shapes = expected_shapes(LLAMA_8B).values()
    parameters = sum(shape[0] * (shape[1] if len(shape) > 1 else 1) for shape in shapes)
    assert parameters == 8_030_261_248


def test_a_table_says_what_was_promised_and_whether_it_was_kept() -> None:
    rows = table(
        [
            Finding("decode", "step over floor", 1.25, at_most=1.3),
            Finding("decode", "step over floor", 1.5, at_most=1.3),
            Finding("decode", "step over floor", float("nan"), at_most=1.3),
            Finding("machine", "card", "H200 | one"),
            Finding("peers", "failed with 1", "broken", fault=True),
        ]
    ).splitlines()[2:]
    assert [row.split("|")[-2].strip() for row in rows] == ["yes", "**no**", "**no**", "", "**no**"]
    assert rows[0] == "| decode | step over floor | 1.25 | ≤ 1.3 | yes |"
    assert rows[3] == "| machine | card | H200 / one |  |  |"


def test_a_finding_is_a_line_and_other_lines_are_none() -> None:
    finding = Finding("decode", "a step", 5.5, "ms", at_most=6.0)
    assert read_line(finding.line()) == finding
    assert read_line("noise") is None
    assert read_line('{"noise": 1}') is None
    assert read_line("[1]") is None


def test_a_section_takes_the_place_of_the_last_and_leaves_the_rest(tmp_path: Path) -> None:
    results = tmp_path / "RESULTS.md"
    results.write_text("# Results\n\nOther tables.\n")
    for value in (1.0, 2.0):
        put_into(results, section([Finding("a", "b", value)], "2026-12-01", rehearsed=False))
    text = results.read_text()
    assert text.startswith("# Results\n\nOther tables.\n\n<!-- gpu -->\n## On a GPU\n")
    assert text.count("## On a GPU") == 1
    assert "| a | b | 2 |" in text
    assert "| a | b | 1 |" not in text


def test_what_another_machine_found_is_taken_into_the_results(tmp_path: Path) -> None:
    (tmp_path / "section.md").write_text(
        section([Finding("a", "b", 3.0)], "today", rehearsed=False)
    )
    results = tmp_path / "RESULTS.md"
    results.write_text("# Results\n")
    assert main(["--take", str(tmp_path), "--results", str(results)]) == 0
    assert "| a | b | 3 |" in results.read_text()
