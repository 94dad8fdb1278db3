"""Write what is generated from the code: ``python -m tests.renew``. Look at the difference before you commit it."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.helpers import ROOT, tiespec
from tests.pages import PAGES, rendered
from tiespec.report.rules import rule_index, rule_page
from tiespec.rules import RULES
from tiespec.spec import json_schema

GOLDEN = {"check_gpt.txt": ("check", "examples/gpt.py", "--stages", "2")}
PICTURES = {
    "gpt-2.svg": ("examples/gpt.py", "--stages", "2"),
    "gpt-4.svg": ("examples/gpt.py:build_layers(['word.weight'])", "--stages", "4"),
    "large-16.svg": ("examples/large.py", "--stages", "16"),
}


def main() -> None:
    """The rules' pages, the JSON Schema of the spec file, the golden outputs, the pictures and what commands in docs/ print."""
    folder = ROOT / "docs" / "rules"
    folder.mkdir(parents=True, exist_ok=True)
    for rule in RULES.values():
        (folder / f"{rule.code}.md").write_text(rule_page(rule))
    (folder / "README.md").write_text(rule_index(RULES.values()))
    (ROOT / "tiespec" / "spec.schema.json").write_text(json_schema())
    for name, command in GOLDEN.items():
        (ROOT / "tests" / "golden" / name).write_text(tiespec(*command).stdout)
    (ROOT / "docs" / "pictures").mkdir(exist_ok=True)
    for name, command in PICTURES.items():
        assert tiespec("show", *command, "-o", f"docs/pictures/{name}").returncode == 0
    for name in PAGES:
        page = ROOT / "docs" / name
        with tempfile.TemporaryDirectory() as folder:
            page.write_text(rendered(page.read_text(), Path(folder)))


if __name__ == "__main__":
    main()
