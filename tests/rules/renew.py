"""Write ``docs/rules/`` from the rules' docstrings: ``python -m tests.rules.renew``."""

from tests.helpers import ROOT
from tiespec.report.rules import rule_index, rule_page
from tiespec.rules import RULES

if __name__ == "__main__":
    folder = ROOT / "docs" / "rules"
    folder.mkdir(parents=True, exist_ok=True)
    for rule in RULES.values():
        (folder / f"{rule.code}.md").write_text(rule_page(rule))
    (folder / "README.md").write_text(rule_index(RULES.values()))
