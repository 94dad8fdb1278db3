"""stdout, stderr, and the spinner between them."""

from __future__ import annotations

import shutil
import sys
import time
from typing import TYPE_CHECKING

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
