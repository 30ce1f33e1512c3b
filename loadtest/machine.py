"""What a figure was measured on: versions and processor."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("octavo", "numpy", "torch")
FLAGS = ("avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8")
"""Processor features that decide how fast products are, by Linux's names."""


class Unmeasured(Exception):
    """What was to be measured cannot be, here or with this model."""


def versions() -> dict[str, str]:
    """Python's version and those of the packages that matter and are installed."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def cpu() -> dict[str, Any]:
    """The processor's model, its features among FLAGS, how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    return {"model": _model(), "cores": cores, "flags": _flags()}


def _model() -> str:
    return _field("model name") or platform.processor() or platform.machine()


def _flags() -> list[str]:
    has = _field("flags").split()
    return [flag for flag in FLAGS if flag in has]


def _field(wanted: str) -> str:
    """What Linux says of the first processor; "" elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() == wanted:
            return value.strip()
    return ""
