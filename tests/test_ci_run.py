"""What .ci/run makes of tests that fail: a second chance for them, and for nothing else."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from support.ended import ENDED, SOME_FAILED

ROOT = Path(__file__).parents[1]
AGAIN = "ARGS=--last-failed --last-failed-no-failures none --numprocesses 0"

MAKE = f"""#!/bin/sh
# Notes what it is asked for; each target fails as often as there are files that say how it ended.
echo "$*" >> called
for file in ends/$1.*; do
  [ -e "$file" ] || exit 0
  mkdir -p $(dirname .pytest_cache/v/{ENDED})
  [ ! -s "$file" ] || cp "$file" .pytest_cache/v/{ENDED}
  rm "$file"
  exit 2
done
"""


def ci(path: Path, **ends: list[str]) -> tuple[bool, list[str]]:
    """Whether .ci/run passes, and what it has had made, if targets fail and end like this."""
    (path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci/run", path / ".ci/run")
    (path / "bin").mkdir()
    for name in ("g++", "python3", "promtool", "chromium", "make"):
        (path / "bin" / name).write_text(MAKE if name == "make" else "#!/bin/sh\n")
        (path / "bin" / name).chmod(0o755)
    (path / "ends").mkdir()
    for target, said in ends.items():
        for number, each in enumerate(said):
            (path / "ends" / f"{target.replace('_', '-')}.{number}").write_text(each)
    done = subprocess.run(
        ["bash", path / ".ci/run"],
        env={**os.environ, "PATH": f"{path / 'bin'}:{os.environ['PATH']}"},
        capture_output=True,
        check=False,
    )
    return done.returncode == 0, (path / "called").read_text().splitlines()


def test_tests_that_pass_are_run_once(tmp_path: Path) -> None:
    assert ci(tmp_path) == (True, ["setup", "check", "test", "test-all"])


def test_what_failed_is_run_once_more_and_alone(tmp_path: Path) -> None:
    again = ["setup", "check", "test", f"test {AGAIN}", "test-all"]
    assert ci(tmp_path, test=[SOME_FAILED]) == (True, again)


def test_what_fails_twice_fails(tmp_path: Path) -> None:
    passed, made = ci(tmp_path, test_all=[SOME_FAILED, SOME_FAILED])
    assert (passed, made[-1]) == (False, f"test-all {AGAIN}")


@pytest.mark.parametrize("said", ["exit status 1", "exit status 2", ""])
def test_a_crash_or_a_run_that_was_cut_short_fails_at_once(tmp_path: Path, said: str) -> None:
    """Also if a run before it left word of failures."""
    passed, made = ci(tmp_path, test=[SOME_FAILED], test_all=[said])
    assert (passed, made[-2:]) == (False, [f"test {AGAIN}", "test-all"])


def test_what_cannot_be_set_up_or_checked_is_not_tested(tmp_path: Path) -> None:
    assert ci(tmp_path, check=[SOME_FAILED]) == (False, ["setup", "check"])
