"""Which line of the user's source an error comes from."""

from __future__ import annotations

import os
import re
import site
import sysconfig
from collections.abc import Iterable, Iterator
from itertools import islice
from types import FrameType, TracebackType

from tiespec.pipeline import CallSite, Location

_COMPREHENSIONS = ("<listcomp>", "<genexpr>", "<setcomp>", "<dictcomp>")
_PACKAGE = os.path.dirname(os.path.abspath(__file__))


def _library_folders() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    folders = [paths[k] for k in ("stdlib", "platstdlib", "purelib", "platlib")]
    return tuple({os.path.realpath(f) + os.sep for f in (*folders, *site.getsitepackages(), _PACKAGE)})


_LIBRARIES = _library_folders()


def is_users(file: str) -> bool:
    """Whether a file is the user's own: neither Python's, nor an installed package's, nor tiespec's."""
    return not file.startswith("<") and not os.path.realpath(file).startswith(_LIBRARIES)


def shown(file: str) -> str:
    """A path as it is shown: relative to the working directory when it lies below it."""
    relative = os.path.relpath(file)
    return file if relative.startswith("..") else relative


def _last_users(frames: Iterable[tuple[str, int]]) -> Location | None:
    found = None
    for file, line in frames:
        if is_users(file):
            found = Location(shown(file), line)
    return found


def blame_exception(error: BaseException) -> Location | None:
    """The innermost line of the user's files in a traceback; for a syntax error the line that does not parse."""
    if isinstance(error, SyntaxError) and error.filename and error.lineno and is_users(error.filename):
        return Location(shown(error.filename), error.lineno)
    return _last_users(_traceback_lines(error.__traceback__))


def _traceback_lines(traceback: TracebackType | None) -> Iterable[tuple[str, int]]:
    while traceback is not None:
        yield traceback.tb_frame.f_code.co_filename, traceback.tb_lineno
        traceback = traceback.tb_next


def blame_frame(frame: FrameType | None) -> Location | None:
    """The innermost line of the user's files on a call stack, starting at its innermost frame."""
    while frame is not None:
        if is_users(frame.f_code.co_filename):
            return Location(shown(frame.f_code.co_filename), frame.f_lineno)
        frame = frame.f_back
    return None


def blame_calls(frame: FrameType | None) -> tuple[CallSite, ...]:
    """The calls in the user's files that led to a frame, the innermost first, up to where a library called the user's code."""
    while frame is not None and not is_users(frame.f_code.co_filename):
        frame = frame.f_back
    return tuple(_call_site(one) for one in _callers(frame))


def _callers(frame: FrameType | None) -> Iterator[FrameType]:
    """A comprehension's frame stands for that of the function it is written in."""
    inside = False
    while frame is not None and is_users(frame.f_code.co_filename):
        if not inside:
            yield frame
        inside = frame.f_code.co_name in _COMPREHENSIONS
        frame = frame.f_back


def _call_site(frame: FrameType) -> CallSite:
    code, end_line, end_byte = frame.f_code, None, None
    if hasattr(code, "co_positions"):  # since Python 3.11
        _, end_line, _, end_byte = next(islice(code.co_positions(), frame.f_lasti // 2, None), (None,) * 4)
    return CallSite(shown(code.co_filename), frame.f_lineno, end_line, end_byte)


def blame_dump(text: str) -> Location | None:
    """The innermost line of the user's files in what ``faulthandler`` wrote (innermost frame first)."""
    frames = [(file, int(line)) for file, line in re.findall(r'File "([^"]+)", line (\d+)', text)]
    return _last_users(reversed(frames))
