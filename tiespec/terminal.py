"""stdout, stderr, and the spinner between them."""

from __future__ import annotations

import os
import shutil
import sys
import time
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rich.status import Status

SPINNER_AFTER = 1.0
"""Seconds before a spinner appears."""


class Spinner:
    """A spinner on stderr that shows the phase after a second; nothing at all when stderr is no terminal."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._status: Status | None = None

    def tick(self, phase: str) -> None:
        """Show what is being done."""
        if not sys.stderr.isatty() or time.monotonic() - self._started < SPINNER_AFTER:
            return
        if self._status is None:
            from rich.console import Console

            self._status = Console(stderr=True).status("")
            self._status.start()
        self._status.update(phase.replace("[", "\\["))

    def relay(self, data: bytes) -> None:
        """Write what the guest printed to stderr."""
        self.stop()
        sys.stderr.buffer.write(data)
        sys.stderr.flush()

    def stop(self) -> None:
        """Take the spinner away."""
        if self._status is not None:
            self._status.stop()
            self._status = None


def width() -> int:
    """Columns to write in: the terminal's, COLUMNS, or 100."""
    return shutil.get_terminal_size((100, 24)).columns


def use_color(asked: Literal["auto", "always", "never"]) -> bool:
    """Whether to write colours to stdout; what is asked for comes before NO_COLOR, FORCE_COLOR and the terminal.

    Set and not empty is what counts: https://no-color.org, https://force-color.org.
    """
    if asked != "auto":
        return asked == "always"
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or (sys.stdout.isatty() and os.environ.get("TERM") != "dumb")
