"""How much memory the process may use, from made-up control groups."""

from pathlib import Path

import pytest

from engine.backends.memory import MAX_AUTO_KV_BYTES, auto_kv_bytes, usable_memory

MIB = 1 << 20


def make_root(root: Path, membership: str, limits: dict[str, str]) -> Path:
    files = {"proc/self/cgroup": membership} | {f"sys/fs/cgroup/{k}": v for k, v in limits.items()}
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content + "\n")
    return root


@pytest.mark.parametrize(
    ("membership", "limits"),
    [
        ("0::/", {"memory.max": f"{100 * MIB}"}),
        ("0::/a/b", {"a/b/memory.max": f"{100 * MIB}"}),
        ("0::/a/b", {"a/memory.max": f"{100 * MIB}", "a/b/memory.max": "max"}),
        ("0::/a", {"memory.max": f"{100 * MIB}", "a/memory.max": f"{300 * MIB}"}),
        ("9:cpu,memory:/a", {"memory/a/memory.limit_in_bytes": f"{100 * MIB}"}),
        ("9:cpu:/a\n4:memory:/a", {"memory/memory.limit_in_bytes": f"{100 * MIB}"}),
    ],
)
def test_the_tightest_group_of_the_process_or_above_it_holds(
    tmp_path: Path, membership: str, limits: dict[str, str]
):
    assert usable_memory(make_root(tmp_path, membership, limits)) == 100 * MIB


def test_without_groups_the_machine_is_the_limit(tmp_path: Path):
    unlimited = make_root(tmp_path / "a", "0::/", {"memory.max": "max"})
    assert usable_memory(unlimited) == usable_memory(tmp_path / "not linux") > 100 * MIB


def test_auto_takes_half_of_a_small_limit(tmp_path: Path):
    root = make_root(tmp_path, "0::/", {"memory.max": f"{100 * MIB}"})
    assert auto_kv_bytes(root) == 50 * MIB


def test_auto_takes_no_more_than_two_gibibytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("engine.backends.memory.usable_memory", lambda root: 1 << 40)
    assert auto_kv_bytes(tmp_path) == MAX_AUTO_KV_BYTES == 2 << 30
