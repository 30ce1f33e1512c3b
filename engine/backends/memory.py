"""How much memory this process may use, and how much of it the KV cache takes by default."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from engine.batch import BLOCK
from engine.capacity import KV_DTYPES
from engine.errors import TooLittleMemory, TooMuchMemory
from engine.models.config import ModelConfig

MAX_AUTO_KV_BYTES = 2 << 30


def auto_kv_bytes(root: Path = Path("/")) -> int:
    """Bytes for the KV cache when nobody says how many: half of what the process may use, at
    most 2 GiB."""
    return min(MAX_AUTO_KV_BYTES, usable_memory(root) // 2)


def usable_memory(root: Path = Path("/")) -> int:
    """Bytes of memory this process may use: the machine's, or less where control groups say so.

    root: where /proc and /sys are looked for.
    """
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([physical, *_cgroup_limits(root)])


def fitting_blocks(
    config: ModelConfig, kv_dtype: str, kv_memory_bytes: int, offload_memory_bytes: int
) -> tuple[int, int]:
    """How many KV blocks of this model, kept as `kv_dtype`, the two memories hold.

    Raises UnfitMemory if one of them does not hold one block, or is more than this process may use.
    """
    block_bytes = BLOCK * config.kv_bytes_per_token(KV_DTYPES[kv_dtype])
    if kv_memory_bytes < block_bytes:
        raise TooLittleMemory("kv_memory", kv_memory_bytes, block_bytes, kv_dtype)
    if 0 < offload_memory_bytes < block_bytes:
        raise TooLittleMemory("offload_memory", offload_memory_bytes, block_bytes, kv_dtype)
    usable = usable_memory()
    for knob, size in (("kv_memory", kv_memory_bytes), ("offload_memory", offload_memory_bytes)):
        if size > usable:
            raise TooMuchMemory(knob, size, usable)
    return kv_memory_bytes // block_bytes, offload_memory_bytes // block_bytes


def _cgroup_limits(root: Path) -> Iterator[int]:
    """The limits of the process's control groups and of all groups above them, v2 and v1."""
    try:
        memberships = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return  # not Linux
    for line in memberships:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            yield from _limits_upwards(root / "sys/fs/cgroup", path, "memory.max")
        elif "memory" in controllers.split(","):
            top = root / "sys/fs/cgroup/memory"
            yield from _limits_upwards(top, path, "memory.limit_in_bytes")


def _limits_upwards(top: Path, path: str, name: str) -> Iterator[int]:
    group = top / path.lstrip("/")
    for folder in (group, *group.parents):
        if not folder.is_relative_to(top):
            return
        try:
            text = (folder / name).read_text().strip()
        except OSError:
            continue
        if text.isdecimal():  # not "max"
            yield int(text)
