"""The shape of the package: which way imports go, and which names are public."""

from __future__ import annotations

import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import tiespec
from tests.helpers import ROOT
from tiespec import errors


def test_the_import_contract_is_kept() -> None:
    done = subprocess.run([str(Path(sys.executable).with_name("lint-imports"))], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", tiespec.__all__)
def test_public_names_exist(name: str) -> None:
    assert getattr(tiespec, name)


def test_no_module_hides_a_public_name() -> None:
    """Importing ``tiespec.x`` sets the attribute ``x`` of the package."""
    assert not {module.name for module in pkgutil.iter_modules(tiespec.__path__)} & set(tiespec.__all__)


def test_every_error_is_public_and_a_tiespec_error() -> None:
    defined = {name for name, value in vars(errors).items() if isinstance(value, type) and value.__module__ == errors.__name__}
    assert defined <= set(tiespec.__all__)
    assert all(issubclass(getattr(errors, name), tiespec.TiespecError) for name in defined)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'generat'"):
        tiespec.generat  # noqa: B018


def test_files_are_small() -> None:
    """A file of rules may be longer: half of it is their documentation."""
    lines = {file: len(file.read_text().splitlines()) for file in (ROOT / "tiespec").rglob("*.py")}
    assert {file.name for file, count in lines.items() if count > (450 if file.parent.name == "rules" else 300)} == set()
