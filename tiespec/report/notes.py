"""What there is to say beside a spec."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


def counted(number: int, noun: str) -> str:
    """``1 tie``, ``2 ties``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


@dataclass(frozen=True)
class Said:
    """Notes and remarks, as they come from the child process.

    Args:
        notes (tuple[str, ...]): what was done differently from what the user may expect.
        remarks (tuple[dict[str, Any], ...]): ``key``, ``message`` and ``help`` of each remark.
    """

    notes: tuple[str, ...]
    remarks: tuple[dict[str, Any], ...]

    def about(self, key: str) -> list[dict[str, Any]]:
        """The remarks on a key."""
        return [remark for remark in self.remarks if remark["key"] == key]


def said_lines(said: Said) -> str:
    """The same as lines, for stderr beside a machine format."""
    lines = [f"warning: key {r['key']}: {r['message']}\n  help: {r['help']}" for r in said.remarks]
    return "".join(f"{line}\n" for line in (*lines, *(f"note: {note}" for note in said.notes)))
