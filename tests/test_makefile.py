"""What `make` says where it cannot begin."""

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_a_python_that_is_not_there_is_named(tmp_path: Path) -> None:
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    done = subprocess.run(
        ["make", "PYTHON=python9", "serve"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert done.stderr.startswith("There is no python9 here")
    assert not (tmp_path / ".venv").exists()
