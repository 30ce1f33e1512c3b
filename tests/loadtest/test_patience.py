"""Policies that do not return are interrupted, and judged for it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

from app.cli import main
from loadtest.conformance.judge import judge_workloads
from loadtest.conformance.patience import DidNotReturnError, patience
from loadtest.conformance.verdict import Verdict
from policies.base import Policy


class Loops(Policy):
    """Thinks for ever about a head, each time it is asked."""

    def pick(self, heads, step):
        while True:
            pass


class NeverReady(Policy):
    def __init__(self, *, services):
        while True:
            pass


def test_a_call_that_loops_is_the_policys_fault_and_the_rest_is_judged() -> None:
    verdict = Verdict("loops", 0)
    with patience(0.2, again=0.02):
        judge_workloads(Loops, verdict, 1)
    line = verdict.lines["E11"]
    assert verdict.workloads == 1
    assert line.failed > 1
    assert "DidNotReturnError" in str(line.example)
    assert "test_patience.py" in str(line.example)


def test_a_constructor_that_loops_ends_it_all() -> None:
    with pytest.raises(DidNotReturnError, match=r"line \d+ of .*test_patience\.py"), patience(0.2):
        judge_workloads(NeverReady, Verdict("never", 0), 1)


def test_who_begins_anew_in_time_is_never_interrupted() -> None:
    verdict = Verdict("default", 0)
    with patience(5.0) as begin_anew:
        judge_workloads(Policy, verdict, 3, begin_anew)
    assert verdict.passed


def test_the_command_says_that_a_constructor_does_not_return(monkeypatch) -> None:
    monkeypatch.setattr("loadtest.commands.conform.patience", partial(patience, 0.2))
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    result = CliRunner().invoke(main, ["conform", "test_patience:NeverReady"])
    assert result.exit_code == 1
    assert "cannot be judged: it did not return (line" in result.output
