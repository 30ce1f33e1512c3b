"""Locust itself, for some seconds, against a simulated server: rows, shapes, errors, report."""

from __future__ import annotations

import csv
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not importlib.util.find_spec("locust"), reason="install the extra `load`"),
]

LATENCIES = {"TTFT", "ITL", "TPOT", "E2E", "queue"}
QUICK = """
groups:
  quick:
    prompt_tokens: {median: 40, spread: 1.5, least: 8, most: 100}
    output_tokens: {median: 10, spread: 1.5, least: 2, most: 30}
    shared_prefix: 0.5
    key: key-of-acme
  long:
    prompt_tokens: {median: 90, spread: 1.0}
    output_tokens: {median: 5, spread: 1.0}
    think_s: 0.1
"""


def load(folder: Path, *arguments: str, users: str = QUICK) -> subprocess.CompletedProcess[str]:
    """A load test with a server of its own; its files are in the folder."""
    (folder / "users.yaml").write_text(users)
    own = ("--html", "report.html", "--csv", "locust", "--file", "users.yaml", "--json")
    command = [sys.executable, "-m", "loadtest.load", "--simulated", *own, *arguments]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, env=dict(os.environ)
    )


def test_a_load_ends_with_a_report_rows_for_each_latency_and_the_servers_word(tmp_path):
    done = load(tmp_path, "--seconds", "20", "--users", "6")
    assert done.returncode in (0, 3), done.stderr
    figures = json.loads(done.stdout)
    assert figures["completed"] == figures["requests"] > 20
    assert figures["errors"] == {}
    assert set(figures["by_tenant"]) == {"quick", "long"}
    with (tmp_path / "locust_stats.csv").open() as file:
        rows = {(row["Type"], row["Name"]): row for row in csv.DictReader(file)}
    for kind in ("all", "quick", "long"):
        assert {name for type_, name in rows if type_ == kind} == LATENCIES
    assert ("POST", "/v1/completions") in rows
    counts = [each for each in figures["agreement"] if each["figure"] == "count"]
    assert len(counts) == 4
    assert all(each["agrees"] for each in counts), counts
    assert (tmp_path / "locust_locust.html").exists()
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")


def test_requests_that_fail_are_counted_by_their_codes_and_told_by_the_status(tmp_path):
    beyond = QUICK.replace("median: 90, spread: 1.0", "median: 9000, spread: 1.0, most: 9000")
    done = load(tmp_path, "--seconds", "6", "--users", "4", "--shape", "step", users=beyond)
    assert done.returncode == 1, done.stderr
    errors = json.loads(done.stdout)["errors"]
    assert set(errors) == {"context_length_exceeded"}
    with (tmp_path / "locust_failures.csv").open() as file:
        [row] = csv.DictReader(file)
    assert "context_length_exceeded" in row["Error"]
    assert 0 < int(row["Occurrences"]) <= errors["context_length_exceeded"]
