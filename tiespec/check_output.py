"""Check the planned targets one after the other, and render what came out."""

from __future__ import annotations

import json
import linecache
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tiespec.errors import TiespecError
from tiespec.plan import Planned
from tiespec.report.findings import report_text
from tiespec.session import do
from tiespec.verdict import Report

FINE, FOUND, COULD_NOT = 0, 1, 2

Outcome = Report | TiespecError


def delivered(
    planned: Sequence[Planned], folder: str | None, single: bool, format: str, debug: bool, color: bool
) -> tuple[str, int]:
    """The report on all targets, and the exit status.

    A target that cannot be checked neither hides nor stops the others.

    Args:
        planned (Sequence[Planned]): what to check.
        folder (str | None): where the targets' paths are relative to.
        single (bool): whether the one target came from the command line: its report is the whole output.
        format (str): ``text`` or ``json``.
        debug (bool): run the user's code in this process.
        color (bool): whether to write terminal colours.

    Raises:
        TiespecError: the single target cannot be checked.
    """
    with _inside(folder):
        if single:
            return rendered_one(
                Report.model_validate(do("check", planned[0].options, planned[0].timeout, debug)), format, color
            )
        outcomes = [_outcome(one, debug) for one in planned]
        return _rendered_all(planned, outcomes, format, color)


@contextmanager
def _inside(folder: str | None) -> Iterator[None]:
    before = os.getcwd()
    os.chdir(folder or os.curdir)
    try:
        yield
    finally:
        os.chdir(before)


def rendered_one(report: Report, format: str, color: bool) -> tuple[str, int]:
    """One report and its exit status."""
    text = report.to_json() if format == "json" else report_text(report, _read_line, color)
    return text, FINE if report.ok else FOUND


def _read_line(file: str, line: int) -> str:
    return linecache.getline(file, line)


def _outcome(one: Planned, debug: bool) -> Outcome:
    try:
        return Report.model_validate(do("check", dict(one.options), one.timeout, debug))
    except TiespecError as error:
        return error


def _rendered_all(planned: Sequence[Planned], outcomes: Sequence[Outcome], format: str, color: bool) -> tuple[str, int]:
    status = max(_status(outcome) for outcome in outcomes)
    if format == "json":
        targets = [_as_json(one.target, outcome) for one, outcome in zip(planned, outcomes, strict=True)]
        return json.dumps({"version": 1, "targets": targets}, indent=2) + "\n", status
    parts = [_as_text(one.target, outcome, color) for one, outcome in zip(planned, outcomes, strict=True)]
    return "\n".join(parts), status


def _status(outcome: Outcome) -> int:
    if isinstance(outcome, TiespecError):
        return COULD_NOT
    return FINE if outcome.ok else FOUND


def _as_json(target: str, outcome: Outcome) -> dict[str, Any]:
    if isinstance(outcome, Report):
        return outcome.model_dump()
    error = {"message": outcome.message, "help": outcome.help, "file": outcome.file, "line": outcome.line}
    return {"version": 1, "target": target, "error": error}


def _as_text(target: str, outcome: Outcome, color: bool) -> str:
    if isinstance(outcome, Report):
        return report_text(outcome, _read_line, color)
    help = f"  help: {outcome.help}\n" if outcome.help else ""
    return f"error: {outcome}\n{help}{target}: could not be checked\n"
