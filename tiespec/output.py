"""The formats of ``tiespec generate``: a result of the child process in, text out."""

from __future__ import annotations

import os
from typing import Any, Literal

from tiespec.errors import SpecError, UsageError
from tiespec.report.notes import Said
from tiespec.spec import SPEC_FILE, TieSpec, load, parse_spec

Format = Literal["text", "python", "json"]


_ENDINGS: dict[str, Format] = {".json": "json", ".py": "python", ".txt": "text", ".md": "text", "": "text"}


def format_for(path: str | None, given: Format | None) -> Format:
    """The format that was asked for; else the one of the file's ending; else text.

    Raises:
        UsageError: the ending is not known.
    """
    if given is not None or path is None:
        return given or "text"
    ending = os.path.splitext(path)[1]
    if ending not in _ENDINGS:
        raise UsageError(f"no format has the ending {ending}", "end FILE in .json, .py or .txt, or say --format")
    return _ENDINGS[ending]


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


def is_ours(text: str) -> bool:
    """Whether a file's text was written by ``tiespec generate -o``, in whichever format."""
    from tiespec.report.python import HEADER
    from tiespec.report.text import is_report

    if text.startswith(HEADER) or is_report(text):
        return True
    try:
        parse_spec(text, "")
    except SpecError:
        return False
    return True


def recorded_filters(output: str | None, format: str, filters: dict[str, Any]) -> dict[str, Any]:
    """The filters with which the spec was written, where none are given."""
    if format != "json" and output is not None:
        return filters
    spec = load(output or SPEC_FILE)
    if filters != {"min_numel": 1, "max_numel": None, "include": [], "exclude": []}:
        return filters
    return {
        "min_numel": spec.min_numel, "max_numel": spec.max_numel,
        "include": spec.include or [], "exclude": spec.exclude or [],
    }  # fmt: skip
