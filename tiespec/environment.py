"""What a bug report has to say about the machine. Nothing that is asked about is imported."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Iterator

from tiespec import __version__

PACKAGES = ("torch", "deepspeed", "transformers", "accelerate", "typer", "rich", "pydantic", "libcst", "matplotlib", "numpy")
VARIABLES = ("TIESPEC_FORMAT", "DS_ACCELERATOR", "RANK", "WORLD_SIZE", "PYTHONHASHSEED", "NO_COLOR", "FORCE_COLOR")


def facts() -> Iterator[tuple[str, str]]:
    """(name, value): releases, platform, and the variables that change what tiespec does, where they are set."""
    yield "tiespec", __version__
    yield "python", f"{platform.python_version()} ({platform.python_implementation()})"
    for package in PACKAGES:
        yield package, _release(package)
    yield "platform", platform.platform()
    yield "processors", str(os.cpu_count())
    for name in VARIABLES:
        if name in os.environ:
            yield name, os.environ[name]


def _release(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
