"""Where it was measured."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

PACKAGES = ("torch", "deepspeed", "transformers", "accelerate", "safetensors")


def machine() -> str:
    """Processor, cores, memory, Python and packages, in one line."""
    memory = f"{psutil.virtual_memory().total / 2**30:.0f} GiB"
    packages = ", ".join(f"{name} {_version(name)}" for name in PACKAGES)
    cores = f"{len(os.sched_getaffinity(0))} cores"
    return f"{_processor()}, {cores}, {memory}; Python {platform.python_version()}, {packages}"


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "(absent)"
