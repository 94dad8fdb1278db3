"""``tiespec rule``."""

from __future__ import annotations

from typing import Annotated

import typer


def rule(
    code: Annotated[str | None, typer.Argument(metavar="[CODE]", help="Such as TIE401; all of them when left out.")] = None,
) -> None:
    """Explain a rule: what it finds, what DeepSpeed does, what to write instead."""
    from tiespec.findings import check_codes
    from tiespec.report.rules import rule_list, rule_page
    from tiespec.rules import RULES

    if code is None:
        typer.echo(rule_list(RULES.values()), nl=False)
        return
    matching = [r for r in RULES.values() if r.code.startswith(code.upper()) or r.name == code]
    if not matching:
        check_codes([code])
    typer.echo("\n".join(rule_page(r) for r in matching), nl=False)
