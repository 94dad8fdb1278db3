"""The formats of ``tiespec generate``: a result of the child process in, text out."""

from __future__ import annotations

from typing import Any, Literal

from tiespec.errors import SpecError
from tiespec.report.notes import Said
from tiespec.spec import TieSpec, parse_spec

Format = Literal["text", "python", "json"]


def format_for(path: str | None, given: Format | None) -> Format:
    """The format that was asked for; else the one of the file's ending; else text."""
    if given is not None or path is None:
        return given or "text"
    return "json" if path.endswith(".json") else "python" if path.endswith(".py") else "text"


def said_of(result: dict[str, Any]) -> Said:
    """The notes and remarks of a result."""
    return Said(tuple(result["notes"]), tuple(result["remarks"]))


def rendered(result: dict[str, Any], format: Format, width: int, color: bool) -> str:
    """The text of a result in a format."""
    spec = TieSpec.model_validate(result["spec"])
    if format == "json":
        return spec.to_json()
    if format == "python":
        from tiespec.report.python import python_source

        return python_source(spec)
    from tiespec.report.text import spec_text

    return spec_text(spec, result["layers"], result["input"], said_of(result), width, color)


def is_ours(format: Format, text: str) -> bool:
    """Whether a file's text was written by ``tiespec generate -o``. A report for people has no mark: it never is."""
    from tiespec.report.python import HEADER

    if format == "python":
        return text.startswith(HEADER)
    if format == "text":
        return False
    try:
        parse_spec(text, "")
    except SpecError:
        return False
    return True
