"""Reports of ``tiespec check``, for people."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.text import Text

from tiespec.report.notes import counted
from tiespec.verdict import Fact, Finding, Report

_COLOURS = {"error": "red", "warning": "yellow", "note": "blue"}

ReadLine = Callable[[str, int], str]


def report_text(report: Report, read_line: ReadLine, color: bool = False) -> str:
    """One report.

    Args:
        report (Report): what was found.
        read_line (Callable): (file, 1-based line) -> its text; empty when there is none.
        color (bool): whether to write terminal colours.
    """
    out = io.StringIO()
    console = Console(file=out, width=200, force_terminal=color, no_color=not color, highlight=False)
    for finding in report.findings:
        _print_finding(console, finding, read_line)
        console.print()
    for note in report.notes:
        help = f"; {note.help}" if note.help else ""
        _say(console, Text(f"note: {f'{note.code} is undecided: ' if note.code else ''}{note.message}{help}"))
    if report.notes:
        console.print()
    _say(console, Text(summary(report)))
    return "\n".join(line.rstrip() for line in out.getvalue().split("\n"))


def _say(console: Console, text: Text) -> None:
    console.print(text, soft_wrap=True)


def _print_finding(console: Console, finding: Finding, read_line: ReadLine) -> None:
    where = f"{finding.file}:{finding.line}: " if finding.file else ""
    head = Text.assemble(
        where, (f"{finding.code} {finding.name}", f"bold {_COLOURS[finding.severity]}"), f" ({finding.severity})"
    )
    _say(console, head)
    if finding.file and finding.line:
        source = read_line(finding.file, finding.line).strip()
        if source:
            _say(console, Text(f"  | {source}", "dim"))
    _say(console, Text(f"  {finding.message}"))
    for fact in finding.facts:
        _say(console, Text(f"    {_place(fact)}: {fact.text}"))
    if finding.consequence != "none":
        _say(console, Text.assemble("  what happens: ", (finding.consequence, "bold")))
    _say(console, Text(f"  help: {finding.help}"))


def _place(fact: Fact) -> str:
    return f"layer {fact.layer}" + ("" if fact.stage is None else f" (stage {fact.stage})")


def summary(report: Report) -> str:
    """What was looked at, and how much was found."""
    looked = f"{report.target}: {counted(report.ties, 'tie')}, {counted(report.layers, 'layer')}, {stages_text(report.stages)}"
    return f"{looked}: {counts(report.findings)}"


def counts(findings: Sequence[Finding]) -> str:
    """``no problems``, or how many errors and warnings."""
    if not findings:
        return "no problems"
    numbers = {severity: sum(f.severity == severity for f in findings) for severity in ("error", "warning", "note")}
    return ", ".join(counted(number, severity) for severity, number in numbers.items() if number)


def stages_text(stages: Sequence[int]) -> str:
    """``1 to 14 stages``, ``2 stages``, ``2 and 4 stages``."""
    if len(stages) > 2 and list(stages) == list(range(stages[0], stages[-1] + 1)):
        return f"{stages[0]} to {stages[-1]} stages"
    if len(stages) == 1:
        return counted(stages[0], "stage")
    return f"{', '.join(str(s) for s in stages[:-1])} and {stages[-1]} stages" if stages else "no stages"
