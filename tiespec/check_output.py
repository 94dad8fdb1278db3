"""Check the planned targets one after the other, and render what came out in every format that was asked for."""

from __future__ import annotations

import json
import linecache
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tiespec.errors import OutputError, TiespecError, UsageError
from tiespec.expression import nearest_name
from tiespec.files import append_text, write_text
from tiespec.plan import Planned
from tiespec.report.checked import Checked
from tiespec.report.concise import concise
from tiespec.report.findings import report_text
from tiespec.report.github import github, step_summary
from tiespec.report.gitlab import gitlab
from tiespec.report.junit import junit
from tiespec.report.sarif import sarif
from tiespec.session import do
from tiespec.verdict import Finding, Report

FINE, FOUND, COULD_NOT = 0, 1, 2
FORMATS = ("text", "concise", "json", "github", "gitlab", "sarif", "junit")


@dataclass(frozen=True)
class Wanted:
    """What to write.

    Args:
        format (str): of stdout, one of ``FORMATS``.
        reports (tuple[tuple[str, str], ...]): (format, file).
        single (bool): whether the one target came from the command line: its report is the whole output.
        color (bool): whether to write terminal colours to stdout.
    """

    format: str
    reports: tuple[tuple[str, str], ...]
    single: bool
    color: bool


def parse_reports(given: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """``FORMAT=PATH``, each.

    Raises:
        UsageError: it is not of that form, or no format has that name.
    """
    found = []
    for text in given:
        format, equals, path = text.partition("=")
        if not equals or not path:
            raise UsageError(f"--report {text!r} has no file", "write FORMAT=PATH, such as --report sarif=tiespec.sarif")
        if format not in FORMATS:
            raise UsageError(f"--report {text!r}: there is no format {format!r}", nearest_name(format, FORMATS))
        found.append((format, path))
    return tuple(found)


Delivered = tuple[str, int, str]
"""The text for stdout, the exit status, and what to say after it on stderr."""


def delivered(planned: Sequence[Planned], folder: str | None, wanted: Wanted, debug: bool) -> Delivered:
    """Check, and write the reports into files.

    A target that cannot be checked neither hides nor stops the others, and so it is with a file that cannot be written.

    Args:
        planned (Sequence[Planned]): what to check.
        folder (str | None): where the targets' paths are relative to.
        wanted (Wanted): what to write.
        debug (bool): run the user's code in this process.

    Raises:
        TiespecError: the single target cannot be checked, and no report is to say so.
    """
    with inside(folder):
        checked = [_checked(one, debug) for one in planned]
    return reported(checked, folder, wanted)


def reported(checked: Sequence[Checked], folder: str | None, wanted: Wanted) -> Delivered:
    """The same for targets that have been checked.

    Raises:
        TiespecError: as ``delivered``.
    """
    with inside(folder):
        error = checked[0].error
        if wanted.single and error is not None and not wanted.reports and wanted.format in ("text", "json"):
            raise error
        text = rendered(checked, wanted.format, wanted.single, wanted.color)
        files = [(path, rendered(checked, format, wanted.single, False)) for format, path in wanted.reports]
        summary = step_summary(_rooted(checked))
    if "github" in (wanted.format, *(format for format, _ in wanted.reports)) and "GITHUB_STEP_SUMMARY" in os.environ:
        append_text(os.environ["GITHUB_STEP_SUMMARY"], summary)
    unwritten = "".join(_write(path, content) for path, content in files)
    return text, COULD_NOT if unwritten else status_of(checked), unwritten


def _write(path: str, content: str) -> str:
    """Write a report; what to say where that fails."""
    try:
        write_text(path, content, lambda text: True, force=True)
    except OutputError as error:
        return f"error: {error}\nhelp: {error.help}\n"
    return ""


@contextmanager
def inside(folder: str | None) -> Iterator[None]:
    """In a folder; None for the working directory."""
    before = os.getcwd()
    os.chdir(folder or os.curdir)
    try:
        yield
    finally:
        os.chdir(before)


def _checked(one: Planned, debug: bool) -> Checked:
    try:
        return Checked(one.target, Report.model_validate(do("check", dict(one.options), one.timeout, debug)))
    except TiespecError as error:
        return Checked(one.target, error=error)


def status_of(checked: Sequence[Checked]) -> int:
    """The exit status: the worst of all targets."""
    return max(COULD_NOT if one.report is None else FINE if one.report.ok else FOUND for one in checked)


def rendered(checked: Sequence[Checked], format: str, single: bool, color: bool = False) -> str:
    """What was found, in a format."""
    if format == "text":
        return "\n".join(_as_text(one, color) for one in checked)
    if format == "json":
        return _as_json(checked, single)
    if format == "concise":
        return concise(checked)
    if format == "sarif":
        from tiespec.rules import RULES

        return sarif(_rooted(checked), list(RULES.values()))
    return {"github": github, "gitlab": gitlab, "junit": junit}[format](_rooted(checked))


def _rooted(checked: Sequence[Checked]) -> list[Checked]:
    """The same with files relative to the repository's root, as code hosts want them."""
    root = next((os.environ[n] for n in ("GITHUB_WORKSPACE", "CI_PROJECT_DIR") if n in os.environ), _git_root(os.getcwd()))
    return [
        one
        if one.report is None
        else Checked(one.target, one.report.model_copy(update={"findings": [_at_root(f, root) for f in one.report.findings]}))
        for one in checked
    ]


def _git_root(folder: str) -> str:
    above = [folder]
    while os.path.dirname(above[-1]) != above[-1]:
        above.append(os.path.dirname(above[-1]))
    return next((place for place in above if os.path.exists(os.path.join(place, ".git"))), folder)


def _at_root(finding: Finding, root: str) -> Finding:
    facts = [fact.model_copy(update={"file": _relative(fact.file, root)}) for fact in finding.facts]
    return finding.model_copy(update={"file": _relative(finding.file, root), "facts": facts})


def _relative(file: str | None, root: str) -> str | None:
    if file is None:
        return None
    path = os.path.relpath(os.path.abspath(file), root)
    return file if path.startswith("..") else path


def _read_line(file: str, line: int) -> str:
    return linecache.getline(file, line)


def _as_json(checked: Sequence[Checked], single: bool) -> str:
    if single and checked[0].report is not None:
        return checked[0].report.to_json()
    targets = [_target_as_json(one) for one in checked]
    held: Any = targets[0] if single else {"version": 1, "targets": targets}
    return json.dumps(held, indent=2) + "\n"


def _target_as_json(one: Checked) -> dict[str, Any]:
    if one.report is not None:
        return one.report.model_dump()
    assert one.error is not None
    fields = {name: getattr(one.error, name) for name in ("message", "help", "file", "line")}
    return {"version": 1, "target": one.target, "error": fields}


def _as_text(one: Checked, color: bool) -> str:
    if one.report is not None:
        return report_text(one.report, _read_line, color)
    assert one.error is not None
    help = f"  help: {one.error.help}\n" if one.error.help else ""
    return f"error: {one.error}\n{help}{one.target}: could not be checked\n"
