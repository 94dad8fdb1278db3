"""``--format github``: annotations of a GitHub workflow, and the table for its summary."""

from __future__ import annotations

from collections.abc import Sequence

from tiespec.report.checked import Checked, all_findings, explained
from tiespec.report.findings import summary
from tiespec.verdict import Finding

KEPT = 10
"""GitHub shows ten annotations of a kind for each step, and drops the others without a word."""
LEVELS = {"error": "error", "warning": "warning", "note": "notice"}


def github(checked: Sequence[Checked]) -> str:
    """Workflow commands. Of more than ten of a level, the last one that is shown says how many there are."""
    by_level: dict[str, list[str]] = {}
    for one in checked:
        if one.error is not None:
            by_level.setdefault("error", []).append(
                _command("error", one.error.file, one.error.line, "tiespec", str(one.error))
            )
    for _, finding, _ in all_findings(checked):
        level = LEVELS[finding.severity]
        by_level.setdefault(level, []).append(_annotation(level, finding))
    return "".join(line + "\n" for level, lines in by_level.items() for line in _at_most(level, lines))


def _annotation(level: str, finding: Finding) -> str:
    return _command(level, finding.file, finding.line, f"{finding.code} {finding.name}", explained(finding))


def _at_most(level: str, lines: list[str]) -> list[str]:
    if len(lines) <= KEPT:
        return lines
    more = f"{len(lines) - KEPT + 1} more of this level are in the log and in the step summary"
    return [*lines[: KEPT - 1], _command(level, None, None, "tiespec", more)]


def _command(level: str, file: str | None, line: int | None, title: str, message: str) -> str:
    place = [f"file={_property(file)}"] if file else []
    place += [f"line={line}"] if file and line else []
    return f"::{level} {','.join([*place, f'title={_property(title)}'])}::{_data(message)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def step_summary(checked: Sequence[Checked]) -> str:
    """A table in Markdown, for ``GITHUB_STEP_SUMMARY``: every finding, none left out."""
    lines = ["## tiespec check", ""]
    for one in checked:
        if one.error is not None:
            lines.append(f"- `{one.target}` could not be checked: {_cell(str(one.error))}")
        elif one.report is not None:
            name = one.report.target
            lines.append(f"- `{name}`{summary(one.report)[len(name) :]}")
    rows = [_row(one, finding) for one, finding, _ in all_findings(checked)]
    if rows:
        lines += ["", "| rule | severity | what happens | where | what |", "|---|---|---|---|---|", *rows]
    return "\n".join(lines) + "\n"


def _row(one: Checked, finding: Finding) -> str:
    where = f"`{finding.file or one.target}{f':{finding.line}' if finding.line else ''}`"
    return f"| {finding.code} | {finding.severity} | {finding.consequence} | {where} | {_cell(finding.message)} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")
