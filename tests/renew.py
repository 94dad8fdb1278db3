"""Write what is generated from the code: ``python -m tests.renew``. Look at the difference before you commit it."""

from __future__ import annotations

from tests.helpers import ROOT, tiespec
from tiespec.report.rules import rule_index, rule_page
from tiespec.rules import RULES
from tiespec.spec import json_schema

GOLDEN = {"check_gpt.txt": ("check", "examples/gpt.py", "--stages", "2")}


def main() -> None:
    """The rules' pages, the JSON Schema of the spec file, and the golden outputs."""
    folder = ROOT / "docs" / "rules"
    folder.mkdir(parents=True, exist_ok=True)
    for rule in RULES.values():
        (folder / f"{rule.code}.md").write_text(rule_page(rule))
    (folder / "README.md").write_text(rule_index(RULES.values()))
    (ROOT / "tiespec" / "spec.schema.json").write_text(json_schema())
    for name, command in GOLDEN.items():
        (ROOT / "tests" / "golden" / name).write_text(tiespec(*command).stdout)


if __name__ == "__main__":
    main()
