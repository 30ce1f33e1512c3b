"""Where there is no C++ compiler, set-up goes on and the server serves, with one warning."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest
from support.float_parity import MODEL, ROOT
from support.served import HANG_S, serving

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not MODEL.exists(), reason=f"{MODEL.name} is not in models/"),
]


def test_the_build_fails_softly_and_int8_is_served_by_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a copy of the packages, in which nothing was built."""
    for package in ("app", "engine", "policies", "loadtest"):
        ignored = shutil.ignore_patterns("built", "__pycache__")
        shutil.copytree(ROOT / package, tmp_path / package, ignore=ignored)
    bare = tmp_path / "bin"
    bare.mkdir()
    monkeypatch.setenv("PATH", str(bare))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    command = [sys.executable, "-m", "engine.native.build"]
    built = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "no C++ compiler was found" in built.stderr
    assert not list(tmp_path.rglob("*.so"))

    kept = f"model.directory={ROOT / 'models'}"  # where int8 weights are, which take long to make
    knobs = (f"model.path={MODEL}", kept, "server.port=0", "engine.kv_memory=128MiB")
    with serving(tmp_path, *(part for knob in knobs for part in ("--set", knob))) as one:
        body = {"prompt": "The largest planet in the solar system", "max_tokens": 4}
        reply = httpx2.post(one.ready() + "/v1/completions", json=body, timeout=HANG_S).json()
        assert reply["usage"]["completion_tokens"] == 4
        said = [json.loads(line) for line in one.lines if line.startswith("{")]
    warnings = [line for line in said if line["level"] == "warning"]
    assert len(warnings) == 1, warnings
    assert "the native library was not built" in json.dumps(warnings)
