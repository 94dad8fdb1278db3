"""The rules' documentation: for the terminal, and as Markdown pages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol


class Documented(Protocol):
    """What is shown of a rule."""

    @property
    def code(self) -> str:
        """Such as TIE401."""

    @property
    def name(self) -> str:
        """In kebab-case."""

    @property
    def severity(self) -> str:
        """error, warning or note."""

    @property
    def consequence(self) -> str:
        """What stock DeepSpeed does."""

    @property
    def text(self) -> str:
        """Markdown."""


def rule_page(rule: Documented) -> str:
    """One rule, as ``docs/rules/CODE.md`` and ``tiespec rule CODE`` show it."""
    facts = f"Severity: {rule.severity}. What happens: {rule.consequence}."
    return f"# {rule.code}: {rule.name}\n\n{facts}\n\n{rule.text.rstrip()}\n"


def rule_list(rules: Iterable[Documented]) -> str:
    """All rules, one line each, for the terminal."""
    return "".join(f"{rule.code} {rule.name:<24} {rule.severity:<8} {first_of(rule)}\n" for rule in rules)


def rule_index(rules: Iterable[Documented]) -> str:
    """All rules, as ``docs/rules/README.md``."""
    head = "# Rules\n\nGenerated from the rules' docstrings; `tiespec rule CODE` shows a page in the terminal.\n\n"
    lines = (f"- [{r.code}]({r.code}.md) {r.name} ({r.severity}, {r.consequence}): {first_of(r)}\n" for r in rules)
    return head + "".join(lines)


def first_of(rule: Documented) -> str:
    """What a rule is about, in one sentence."""
    return rule.text.split("\n\n")[0].replace("\n", " ")
