"""Fixtures for all tests."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
THEIRS = tuple(str(folder) for folder in (ROOT / "examples", ROOT / "tests" / "cases"))


PROCESSES = ("tests/runtime/", "tests/verify/test_cases.py", "tests/differential/", "tests/rules/test_rules_real.py")
"""Where most tests start ranks: one after the other, in one of the two workers."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ranks of two tests do not run beside each other; everything else does."""
    for item in items:
        if item.nodeid.startswith(PROCESSES):
            item.add_marker(pytest.mark.xdist_group("processes"))


@pytest.fixture(autouse=True)
def imports_kept(tmp_path: Path) -> Iterator[None]:
    """Model files of one test are not seen by the next: two of them may be called model.py."""
    path, arguments = list(sys.path), list(sys.argv)
    yield
    sys.path[:], sys.argv[:] = path, arguments
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith((str(tmp_path), *THEIRS)):
            del sys.modules[name]


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., str]:
    """Write a file below the test's folder and return its path."""

    def write(source: str, name: str = "model.py") -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
        return str(path)

    return write
