"""The tree of exceptions.

TiespecError
├── UsageError     an option or a TARGET that cannot be understood
├── TargetError    the user's file does not load, or does not build
├── SpecError      a spec file that cannot be read, or has no such key
├── OutputError    a file that cannot be written
├── GuestError     the process that runs the user's code ended without an answer
└── TieError       at run time, on every rank that holds the tie
    ├── TieMismatchError    the ranks do not hold the same
    ├── TieUnresolvedError  a name means no Parameter
    └── TieOutOfSyncError   the copies of a tied tensor differ
"""

from __future__ import annotations

from typing import Any

INTERNAL_HELP = "this is a fault in tiespec; --debug shows where it happened"


class TiespecError(Exception):
    """What is wrong, where, and what to do about it.

    Args:
        message (str): what is wrong, one sentence without a full stop.
        help (str): what to do about it; empty when the message says it all.
        file (str | None): the user's file it is about.
        line (int | None): the line in ``file``, 1-based.
    """

    def __init__(self, message: str, help: str = "", file: str | None = None, line: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.help = help
        self.file = file
        self.line = line

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}: " if self.file and self.line else f"{self.file}: " if self.file else ""
        return where + self.message


def fields_of(error: TiespecError) -> dict[str, Any]:
    """The fields of an error, as JSON; ``error_of`` makes the error of them again."""
    fields = {name: getattr(error, name) for name in ("message", "help", "file", "line")}
    return {"type": type(error).__name__, **fields}


def error_of(fields: dict[str, Any]) -> TiespecError:
    """The error that ``fields_of`` was given, in another process."""
    named = dict(fields)
    kind: type[TiespecError] = globals()[named.pop("type")]
    return kind(**named)


class UsageError(TiespecError):
    """An option or a TARGET that cannot be understood."""


class TargetError(TiespecError):
    """The user's file does not load, or what it describes does not build."""


class SpecError(TiespecError):
    """A spec file that cannot be read, or that has no such key."""


class OutputError(TiespecError):
    """A file that cannot be written, or that must not be overwritten."""


class GuestError(TiespecError):
    """The process that runs the user's code ended without an answer."""


class TieError(TiespecError):
    """Raised by the patched PipelineModule, on every rank that holds the tie, never on one alone."""


class TieMismatchError(TieError):
    """The ranks do not hold the same parameters of a tie, or not the same layers."""


class TieUnresolvedError(TieError):
    """A name in ``tied_weight_attr`` means no Parameter of the layer."""


class TieOutOfSyncError(TieError):
    """The copies of a tied tensor differ."""
