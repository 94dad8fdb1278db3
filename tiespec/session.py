"""One command's dealings with the child process and the terminal."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import Any

from tiespec.errors import TiespecError
from tiespec.host import run_job
from tiespec.terminal import Spinner


def do(job: str, options: dict[str, Any], timeout: float, debug: bool) -> dict[str, Any]:
    """Do a job of ``jobs.JOBS``: in a child process with a spinner, or in this one for ``--debug``.

    Raises:
        TiespecError: what the job raised, or how its process ended.
    """
    if debug:
        return _do_here(job, options)
    spinner = Spinner()
    try:
        return run_job(job, options, timeout, spinner.relay, spinner.tick)
    finally:
        spinner.stop()


def _do_here(job: str, options: dict[str, Any]) -> dict[str, Any]:
    """A traceback shows everything, and a debugger can be attached."""
    from tiespec.jobs import JOBS

    run: Callable[..., dict[str, Any]] = JOBS[job]
    with redirect_stdout(sys.stderr):
        try:
            return run(options, lambda phase: None)
        except TiespecError:
            traceback.print_exc()
            raise


def print_report(text: str) -> bool:
    """Write a report to stdout; False when its reader has had enough (``tiespec ... | head``)."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return False
    return True
