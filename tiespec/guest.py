"""Calls into the user's code: whatever it raises becomes a TargetError that names the user's file and line."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tiespec.blame import blame_exception
from tiespec.errors import TargetError, TiespecError
from tiespec.pipeline import Location

Progress = Callable[[str], None]

DEBUG_HINT = "--debug shows the whole traceback; --setup FILE.py:function runs first, for what the file needs to find set"
MEMORY_HINT = "build the model in a function: what a function returns is built on the meta device, without memory"


leave = os._exit
"""As it was before the guest could replace it."""


def die_with_the_parent(parent: int) -> None:
    """From now on this process is killed when the one that started it, ``parent``, ends (Linux)."""
    if sys.platform != "linux":
        return
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it has ended already
        leave(1)


@contextmanager
def guest(what: str, fallback: Location | None = None) -> Iterator[None]:
    """Run the user's code in the body.

    Args:
        what (str): what is being done, for the message, such as ``"importing model.py"``.
        fallback (Location | None): the line to name when no frame of the user's files is on the traceback.

    Raises:
        TargetError: for whatever the body raises; a TiespecError passes as it is.
    """
    try:
        yield
    except TiespecError:
        raise
    except BaseException as error:  # SystemExit and KeyboardInterrupt too: the guest must not end the host
        raise as_target_error(error, what, fallback) from error


def as_target_error(error: BaseException, what: str, fallback: Location | None = None) -> TargetError:
    """The TargetError for what the user's code raised."""
    where = blame_exception(error) or fallback
    message = f"{_describe(error)} (while {what})"
    return TargetError(message, _advice(error), where.file if where else None, where.line if where else None)


def _describe(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return f"the file ends the program: SystemExit({error.code!r})"
    if is_out_of_memory(error):
        return f"out of memory: {_first_line(error)}"
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error.msg}"
    return f"{type(error).__name__}: {_first_line(error)}"


def _first_line(error: BaseException) -> str:
    lines = text_of(error).strip().splitlines()
    return lines[0] if lines else "no message"


def text_of(error: BaseException) -> str:
    """``str(error)``; empty where even that raises."""
    try:
        return str(error)
    except Exception:  # the user's class may do anything
        return ""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether Python or torch ran out of memory."""
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return True
    return isinstance(error, MemoryError) or "can't allocate memory" in text_of(error)


def _advice(error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError):
        missing = (error.name or "").partition(".")[0]
        return f"install {missing!r} in the environment that runs tiespec, or put a stub for it into --setup"
    if isinstance(error, SystemExit):
        if error.code == 2:  # argparse
            return "a file that reads the command line when it is imported finds none: set sys.argv in --setup FILE.py:function"
        return "put what runs the training under `if __name__ == '__main__':`, or name a function that builds the layers"
    if is_out_of_memory(error):
        return MEMORY_HINT
    return DEBUG_HINT
