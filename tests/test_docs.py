"""What the documentation shows is what happens."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.helpers import ROOT, tiespec
from tests.pages import PAGES, rendered

README = (ROOT / "README.md").read_text()


def test_the_output_in_the_readme_is_the_real_one() -> None:
    shown = re.findall(r"<!-- output: tiespec (.+?) -->\n```\n(.*?)```", README, re.DOTALL)
    assert shown
    for command, output in shown:
        printed = re.sub(r"\S*tiespec-verify-\w+", "/tmp/tiespec-verify-1a2b3c4d", tiespec(*shlex.split(command)).stdout)
        assert printed.strip("\n") == output.strip("\n")


@pytest.mark.parametrize("name", PAGES)
def test_the_commands_of_a_page_print_what_is_shown(name: str, tmp_path: Path) -> None:
    page = (ROOT / "docs" / name).read_text()
    assert "```console" in page
    assert measured(rendered(page, tmp_path)) == measured(page)


def measured(text: str) -> str:
    """Losses and rounding errors belong to the machine."""
    return re.sub(r"\b\d+\.\d{4}\b|\b[\d.]+e-\d+\b", "#", text)


def test_the_commands_in_the_readme_are_known() -> None:
    shown = {line.split()[1] for line in README.splitlines() if line.startswith("tiespec ")}
    known = tiespec("--help").stdout
    assert shown
    assert all(re.search(rf"^\s+{name}\b", known, re.MULTILINE) for name in shown)


def test_every_module_is_in_the_architecture() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    modules = {path.name for path in (ROOT / "tiespec").glob("*.py")} - {
        "__init__.py",
        "__main__.py",
        "errors.py",
        "terminal.py",
        "files.py",
        "state.py",
        "output.py",
    }
    assert {name for name in modules if f"`{name}`" not in text} == set()


def test_links_in_the_documentation_lead_somewhere() -> None:
    for file in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")):
        for link in re.findall(r"\]\(([^)#:]+)\)", file.read_text()):
            assert (file.parent / Path(link)).exists(), (file, link)
