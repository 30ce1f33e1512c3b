"""Each version of FlashInfer takes the calls that are made, and its Python computes the same.

`make test-all` puts the versions into folders of their own; nothing of them is compiled.
"""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.cpu_device import CPUDevice
from support.flashinfer_stub import Call, flashinfer_stub

from engine.backends.cuda.split import padded, split
from tests.engine.backends.cuda.attended import DUMMY, attended, batch_of, random_batch

ROOT = Path(__file__).parents[4]
VERSIONS = Path(sys.prefix) / "flashinfer"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("flashinfer-versions"),  # what a version says is asked for once
]


def calls_made() -> list[Call]:
    """Every call that attention makes, on the stand-in: eager steps, mixed ones, and a graph."""
    rng = np.random.default_rng(0)
    calls: list[Call] = []
    for options in ({}, {"mixed": True}, {"windows": (None, 9)}):
        house = attended(**options)
        for _ in range(3):
            batch = random_batch(rng)
            house.step(batch, house.queries(batch.tokens))
        decodes = split(batch_of(rng, (20, 1))).decodes
        assert decodes is not None
        graph = house.attention.graph(2, 8)
        graph.plan(padded(decodes, 2, DUMMY))
        graph.run(0, house.queries(2), None)
        calls += house.flashinfer.calls
    return calls


def scaled(call: Call) -> list[str]:
    """Names of a call's arguments; those of an fp8 cache, which the stand-in computes as well."""
    more = ["k_scale", "v_scale"] if call.method == "run" else []
    return sorted({*call.kwargs, *more})


@pytest.fixture(scope="module", params=["0.6.18.post1", "0.7.4"])
def version(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What this version says."""
    folder = VERSIONS / request.param
    if not folder.exists():
        pytest.skip(f"FlashInfer {request.param} is not in {folder}; `make test-all` puts it there")
    asked = [
        {"kind": c.kind, "method": c.method, "names": scaled(c), "positional": len(c.args)}
        for c in calls_made()
    ]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, (folder, ROOT, ROOT / "tests"))),
        "FLASHINFER_WORKSPACE_BASE": str(tmp_path_factory.mktemp("workspace")),
        "FLASHINFER_CUDA_ARCH_LIST": "9.0a",
    }
    done = subprocess.run(
        [sys.executable, "-m", "support.flashinfer_on_cpu"],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["version"] == request.param
    return said


def test_every_call_is_made():
    made = {(call.kind, call.method) for call in calls_made()}
    kinds = {"BatchDecodeWithPagedKVCacheWrapper", "BatchPrefillWithPagedKVCacheWrapper"}
    assert made == {(kind, method) for kind in kinds for method in ("__init__", "plan", "run")}


def test_every_call_binds(version: Any):
    assert version["unbound"] == []


def test_parameters_are_those_of_the_stand_in(version: Any):
    stub = flashinfer_stub(CPUDevice())
    for name, real in version["parameters"].items():
        kind, method = name.split(".")
        ours = inspect.signature(getattr(getattr(stub, kind), method)).parameters
        for parameter in ours.values():
            if parameter.kind is not parameter.VAR_POSITIONAL:
                described = [parameter.kind.name, repr(parameter.default)]
                assert real[parameter.name] == described, f"{name}: {parameter.name}"


def test_modules_of_our_types_and_head_sizes_are_generated(version: Any):
    modules = version["modules"]
    assert len(modules) == 8
    for name, sources in modules.items():
        assert "batch_prefill" in name
        assert any("paged_kernel" in source for source in sources), sources


def test_attention_through_the_wrappers_equals_the_reference(version: Any):
    assert len(version["errors"]) == 8
    for setting, error in version["errors"].items():
        assert error < 1e-2, setting
